"""Scripts are read as bash runs them: bash itself, with a program that prints its words, is the reference."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from corerl_verl.launches import of_script

BASH = shutil.which("bash")
START = "python3 -m verl.trainer.main_ppo"
PRINTS = "#!/bin/sh\nshift 2\nprintf '<%s>' \"$@\"\necho\n"
OUT = f"<<EOF\n{START} x=$A y=\\$A \\\\\n  z=\"1 2\"\nEOF\n"

SCRIPTS = [
    f"export A=1\nbash {OUT}",
    f"A=1\nsh -s -- p q <<'EOF'\nA=2\n{START} x=$A \\\n  y=$1$2\nEOF\n",
    f"A=1\nbash <<-EOF | tee /dev/null\n\t{START} x=$A\n\tEOF\n",
    f"set -ea; A=1\ncat {OUT.replace('<<EOF', '<<EOF | bash')}",
    f"export A=1\nbash -e <<'EOF'\nif [ $A = 1 ]; then {START} x=$A; fi\nEOF\n{START} y=1\n",
    f"cat > run.sh <<'EOF'\n{START} x=$1 y=2\nEOF\nbash run.sh 5 6\nsource ./run.sh 7\n",
    f"cat <<EOF > run.sh\n{START} x=1\nEOF\necho done\n{START} y=2\n",
    f"cat <<EOF >run.sh\n{START} x=1\nEOF\ntee -a other <<EOF >/dev/null\n{START} x=1\nEOF\n{START} y=2\n",
    f"echo '{START} x=1' > run.sh; bash run.sh\n",
    f"python3() {{ :; }}; f() {{ cat <<EOF\nv=$1\nEOF\n}}\nX=$(f 3)\nunset -f python3; {START} $X\n",
    f"X=$(cat <<'EOF'\na=$B c=1\nEOF\n)\n{START} $X\n",
    f"A=1; bash <<< \"{START} x=$A\"\n",
    f"{START} a{{1..3}} b{{03..1}} c{{a..c}}d {{x,y{{1,2}}}} {{1..9..4}} {{z}} {{}} '{{a,b}}' \"{{1..2}}\" e={{a:1,b:2}}\n",
    f"A={{1,2}}; B=(x{{1..2}} 3)\nfor i in {{5..3}} {{-1..1}}; do B+=($i); done\n{START} $A \"${{B[@]}}\" ${{A}}{{,s}}\n",
    f"{START} b={{,}} c={{1,2 d={{$A,\\,}}\n",
    f"mapfile -t A <<EOF\np=1 2\nq=3\nEOF\nreadarray -t B < <(printf '%s\\n' r s)\n{START} \"${{A[@]}}\" ${{#B[@]}} ${{B[1]}}\n",
    f"read -r A B C <<< '1  2 3 4'; IFS=, read -ra D <<< 'x,y z,w'\n{START} a=$A b=$B \"c=$C\" \"${{D[@]}}\"\n",
    f"read -r -d '' A <<'EOF' || true\nn=6\nm=7 $HOME\nEOF\n{START} $A\n",
    f"A=(1 2 3); X=$(IFS=,; echo \"${{A[*]}}\"); IFS=+; Y=\"${{A[*]}}\"; unset IFS\n{START} \"[$X]\" $Y ${{A[*]}}\n",
    f"printf -v A '%s,' a b c; {START} \"[${{A%,}}]\" $(printf '%s-%d ' a 1 b 2)\n",
    f"X='1,2'; IFS=,; for i in $X; do L+=(v=$i); done; unset IFS; {START} \"${{L[@]}}\"\n",
    f"while read -r line; do L+=(\"$line\"); done < /dev/null\n{START} n=${{#L[@]}}\n",
    f"for f in a b; do cat <<EOF >/dev/null\n$f\nEOF\ndone; if true; then {START} x=1; fi <<EOF\nfi\nEOF\n{START} y=2\n",
    f"A='x y'\n{START} ${{A// /_}} \"${{A:-q}}\" ${{B-\"1 2\"}} ${{A#x }} > log.txt 2>&1 < /dev/null && cat log.txt\n",
]


@pytest.mark.skipif(BASH is None, reason="no bash")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_starts_what_bash_starts(script: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "python3"
    program.parent.mkdir()
    program.write_text(PRINTS)
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:{os.defpath}", "HOME": "/home/u"}
    done = subprocess.run(
        [str(BASH)], input=script, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=20, check=False
    )
    expected = [line for line in done.stdout.splitlines() if line.startswith("<")]
    read = ["".join(f"<{word}>" for word in launch.arguments) for launch in of_script(script, environment).launches]
    assert read == expected, done.stderr
