"""Scripts are read as bash runs them: bash itself, with a program that prints its words, is the reference."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from corerl_verl.launches import of_script

BASH = shutil.which("bash")
PRINTS = "#!/bin/sh\nshift 2\nprintf '<%s>' \"$@\"\necho\n"

SCRIPTS = [
    # here-documents, texts and files that the script writes
    'export A=1\nbash <<EOF\nTRAIN x=$A y=\\$A \\\\\n  z="1 2"\nEOF\n',
    "A=1\nsh -s -- p q <<'EOF'\nA=2\nTRAIN x=$A \\\n  y=$1$2\nEOF\n",
    "A=1\nbash <<-EOF | tee /dev/null\n\tTRAIN x=$A\n\tEOF\n",
    "set -ea; A=1\ncat <<EOF | bash\nTRAIN x=$A y=\\$A\nEOF\n",
    "export A=1\nbash -e <<'EOF'\nif [ $A = 1 ]; then TRAIN x=$A; fi\nEOF\nTRAIN y=1\n",
    "cat > run.sh <<'EOF'\nTRAIN x=$1 y=2\nEOF\nbash run.sh 5 6\nsource ./run.sh 7\n",
    "cat <<EOF > run.sh\nTRAIN x=1\nEOF\necho done\nTRAIN y=2\n",
    "cat <<EOF >run.sh\nTRAIN x=1\nEOF\ntee -a other <<EOF >/dev/null\nTRAIN x=1\nEOF\nTRAIN y=2\n",
    "echo 'TRAIN x=1' > run.sh; bash run.sh\n",
    "python3() { :; }; f() { cat <<EOF\nv=$1\nEOF\n}\nX=$(f 3)\nunset -f python3; TRAIN $X\n",
    'X=$(cat <<\'EOF\'\nit\'s $B "c"\nEOF\n)\nTRAIN "$X"\n',
    'A=1; bash <<< "TRAIN x=$A"\n',
    "for f in a b; do cat <<EOF >/dev/null\n$f\nEOF\ndone; if true; then TRAIN x=1; fi <<EOF\nfi\nEOF\nTRAIN y=2\n",
    "echo TRAIN not; : TRAIN not; TRAIN yes > log.txt 2>&1 < /dev/null && cat log.txt\n",
    # braces
    "TRAIN a{1..3} b{03..1} c{a..c}d {x,y{1,2}} {1..9..4} {z} {} '{a,b}' \"{1..2}\" e={a:1,b:2}\n",
    'A={1,2}; B=(x{1..2} 3)\nfor i in {5..3} {-1..1}; do B+=($i); done\nTRAIN $A "${B[@]}" ${A}{,s}\n',
    "A=7; TRAIN b={,} c={1,2 d={$A,\\,}\n",
    # arrays that are read
    "mapfile -t A <<EOF\np=1 2\nq=3\nEOF\nreadarray -t B < <(printf '%s\\n' r s)\nTRAIN \"${A[@]}\" ${#B[@]} ${B[1]}\n",
    "read -r A B C <<< '1  2 3 4'; IFS=, read -ra D <<< 'x,y z,w'\nTRAIN a=$A b=$B \"c=$C\" \"${D[@]}\"\n",
    "read -r -d '' A <<'EOF' || true\nn=6\nm=7 $HOME\nEOF\nTRAIN $A\n",
    'while read -r line; do L+=("$line"); done < /dev/null\nTRAIN n=${#L[@]}\n',
    # separators, prints, changes of values
    'A=(1 2 3); X=$(IFS=,; echo "${A[*]}"); IFS=+; Y="${A[*]}"; unset IFS\nTRAIN "[$X]" $Y ${A[*]}\n',
    "X='1,2'; IFS=,; for i in $X; do L+=(v=$i); done; unset IFS; TRAIN \"${L[@]}\"\n",
    "printf -v A '%s,' a b c; TRAIN \"[${A%,}]\" $(printf '%s-%d ' a 1 b 2)\n",
    "TRAIN $(printf '%x %e' 255 1) $(echo -e 'a\\tb') $(seq 1 2 5)\n",
    'A=\'x y\'\nTRAIN ${A// /_} "${A:-q}" ${B-"1 2"} ${A#x }\n',
    "A=(a b c d)\nTRAIN ${A[@]:1:2} ${A[@]: -1} ${A[*]%c} ${#A[1]} ${A[@]/a/z}\n",
    "A=path/to/f.tar.gz\nTRAIN ${A/to/x} ${A//t/T} ${A/#path/q} ${A/%gz/bz} ${A: -2} ${A//[a-h]/_} ${A^} ${A^^}\n",
    "TRAIN 'it''s' $'\\x41' $'a\\'b' $'tab\\t.'\n",
    "declare -i n=3; n+=4; m=08; TRAIN $n $((10#$m + 1)) $((2#101))\n",
    'f() { TRAIN "$@"; return 3; }; f a b || TRAIN c; unset -f f\n',
    # a backslash at the end
    "TRAIN a \\\n  b \\",
    "TRAIN a\\",
    "TRAIN a b\\\\",
    "TRAIN a \\\n",
]


@pytest.mark.skipif(BASH is None, reason="no bash")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_starts_what_bash_starts(script: str, tmp_path: Path) -> None:
    script = script.replace("TRAIN", "python3 -m verl.trainer.main_ppo")
    program = tmp_path / "bin" / "python3"
    program.parent.mkdir()
    program.write_text(PRINTS)
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:{os.defpath}", "HOME": "/home/u"}
    done = subprocess.run(
        [str(BASH)], input=script, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=20
    )
    expected = [line for line in done.stdout.splitlines() if line.startswith("<")]
    read = ["".join(f"<{word}>" for word in launch.arguments) for launch in of_script(script, environment).launches]
    assert read == expected, done.stderr
