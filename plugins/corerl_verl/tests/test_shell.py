"""Shell scripts are followed without being executed."""

from pathlib import Path

import pytest

from corerl.errors import ConfigError
from corerl_verl.launches import of_script, of_words
from corerl_verl.shell.expansion import Variables
from corerl_verl.shell.run import run
from corerl_verl.sources import read

START = "python3 -m verl.trainer.main_ppo"


def arguments(script: str, *given: str, **environment: str) -> list[str]:
    return of_script(script, environment, given).launches[0].arguments


@pytest.mark.parametrize(
    ("before", "word", "expected"),
    [
        ("A=1", "x=$A", ["x=1"]),
        ("", "x=${A:-${B:-7}}", ["x=7"]),
        ("A=", "x=${A:-7} y=${A-7}", ["x=7", "y="]),
        ("A=3", "x=$((A * 2 + 1024*4)) y=$(((A+1)/2))", ["x=4102", "y=2"]),
        ("A=/m/Qwen-7B", "x=$(basename $A) y=${A##*/} z=${A%/*}", ["x=Qwen-7B", "y=Qwen-7B", "z=/m"]),
        ("A='a b'", 'x="$A" y=$A', ["x=a b", "y=a", "b"]),
        ("A=(1 '2 3')", '"${A[@]}" ${#A[@]} ${A[1]}', ["1", "2 3", "2", "2", "3"]),
        ("A=(1)\nA+=(\n  # why (not)\n  2 # two\n)", '"${A[@]}"', ["1", "2"]),
        ("A=a-b", "x=${A/-/_} y=${A^^} z=${A:2}", ["x=a_b", "y=A-B", "z=b"]),
        ("", 'x=\'$A\' y="a\\"b" z=a\\ b', ["x=$A", 'y=a"b', "z=a b"]),
        ("", """x='["console","wandb"]'""", ['x=["console","wandb"]']),
        ("export A=1 B=2\nunset C", "x=$B", ["x=2"]),
        ("", 'x=1 "$@" y=2', ["x=1", "y=2"]),
        ("A=3", "x=$((${A:-8} * 2)) y=$((A>2 ? 4 : U)) z=$((-7/2)) w=$((0x10 + 2**3))", ["x=6", "y=4", "z=-3", "w=24"]),
        ("A=1\nlet A=7\n((A += 2)); ((B++))", "x=$A y=$B", ["x=9", "y=1"]),
        ("declare -A P=([lr]=1e-6 [n]=8)\nP[n]=9", 'x=${P[lr]} y=${P["n"]} z=${#P[@]}', ["x=1e-6", "y=9", "z=2"]),
        ("A=(7 14)\nA[1]=15\nA[3]=4", "x=${A[1]} y=${A[-1]} z=${#A[@]} ${A[@]:1:1}", ["x=15", "y=4", "z=3", "15"]),
        ("A=(1 '2 3')\nset -- a b", '"x=${A[*]}" "$*" ${A[*]}', ["x=1 2 3", "a b", "1", "2", "3"]),
        ("M=q\nS=M\nA=(a b)", "x=${!S} ${!A[@]}", ["x=q", "0", "1"]),
        ("A=1\nf() { local A=2; B=3; }\nf; (B=4)", "x=$A y=$B", ["x=1", "y=3"]),
        ("A=1\nA=2 env true", "x=$A", ["x=1"]),
        ("A=5; unset A", "x=${A:-3}", ["x=3"]),
        ("set -- a 'b c'; set -- \"$@\" d", '"$@"', ["a", "b c", "d"]),
        ("printf -v A 'run_%02d' 7", "x=$A y=$'a\\tb' z=$(printf '%d' 5)", ["x=run_07", "y=a\tb", "z=5"]),
        ("", "x=$(nvidia-smi -L | wc -l) y=$(echo a | tr a b)", ["x=$(nvidia-smi -L | wc -l)", "y=$(echo a | tr a b)"]),
        ("f() { echo a$1; echo b; }\ng() { echo a | tr a b; }", "$(f 1) x=$(g)", ["a1", "b", "x=$(g)"]),
        ("G=$(nproc)", "x=$((G * 4)) y=$((U * 8))", ["x=$((G * 4))", "y=$((U * 8))"]),
    ],
)
def test_words_are_expanded_as_in_bash(before: str, word: str, expected: list[str]) -> None:
    assert arguments(f"{before}\n{START} {word}\n") == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("A=4\nif [ $A -eq 4 ]; then B=x; else B=y; fi", "x"),
        ('if [ "$U" = 1 ]; then B=x; elif [[ -z $V && 2 -gt 1 ]]; then B=z; else B=y; fi', "z"),
        ("if nvidia-smi; then B=x; else B=y; fi", "y"),
        (
            "D=$(python3 -c 'import npu' 2>/dev/null && echo npu || echo gpu)\ncase $D in npu) B=n;; g*) B=g;; esac",
            "g",
        ),
        ("f() { B=$1; }\nf q", "q"),
        ("B=0\nwhile [[ $# -gt 0 ]]; do B=9; shift; done", "0"),
        ("B=1 && [ -f missing ] && B=2", "1"),
        ("cat > f <<EOF\nB=9\nEOF\nB=3", "3"),
        ("B=1\nfor i in 1 2 3; do B=$i; done", "3"),
        ("true || B=2; B=${B:-5}", "5"),
        ("f() { if [ $1 = a ]; then B=2; return 0; fi; B=4; }\nf a", "2"),
        ("for i in 1 2 3; do if ((i > 1)); then break; fi; B=$i; done", "1"),
        ("for i in 1 2 3; do for j in 1 2; do [ $i = 2 ] && continue 2; B=$i$j; done; done", "32"),
        ("for ((i=0; i<3; i++)); do B=$i; done", "2"),
        ("i=0; while [ $i -lt 3 ]; do i=$((i+1)); done; until ((i > 4)); do i=9; done; B=$i", "9"),
        ("B=0; while ! ray status; do B=1; done; while read -r line; do B=2; done", "0"),
        ("[[ ab =~ ^(ab|c)$ ]] && B=4", "4"),
        ("if ! python3 -m verl.trainer.main_eval; then exit 1; fi; (exit 1); B=6", "6"),
        ("B=1; bash -c 'B=2'", "1"),
    ],
)
def test_control_flow_is_followed(script: str, expected: str) -> None:
    assert arguments(f"{script}\n{START} x=$B") == [f"x={expected}"]


def test_positional_arguments_reach_the_command() -> None:
    script = f'ENGINE=${{1:-vllm}}\n{START} n=$ENGINE "${{@:2}}"'
    assert arguments(script, "sglang", "a.b=1") == ["n=sglang", "a.b=1"]
    assert arguments(script) == ["n=vllm"]


def test_options_of_a_script_are_read_by_its_loop() -> None:
    case = 'case "$1" in --lr) LR=$2; shift 2;; --n=*) N="${1#*=}"; shift;; *) MORE+=("$1"); shift;; esac'
    script = f'while [[ $# -gt 0 ]]; do {case}; done\n{START} lr=${{LR:-1}} n=${{N:-2}} "${{MORE[@]}}"'
    assert arguments(script, "--lr", "3e-6", "a.b=1", "--n=4", "c=d e") == ["lr=3e-6", "n=4", "a.b=1", "c=d e"]
    assert arguments(script) == ["lr=1", "n=2"]


def test_a_shell_within_the_script_has_the_variables_of_its_line() -> None:
    script = f'LR=3\nbash -c "{START} lr=$LR n=\\${{N:-2}} x=\\$1" name arg\nLR=4'
    assert arguments(script) == ["lr=3", "n=2", "x=arg"]


def test_comments_and_blank_lines_within_a_command_are_bridged_and_named() -> None:
    script = f"{START} \\\n  a=1 \\   # why\n\n  # more\n  b=2 \\\n  # last\necho done"
    found = of_script(script, {})
    assert (found.launches[0].arguments, found.mended) == (["a=1", "b=2"], True)
    plain = of_script(f"{START} a=1 \\\n  b=2  # end\necho x", {})
    assert (plain.launches[0].arguments, plain.mended) == (["a=1", "b=2"], False)


@pytest.mark.parametrize(
    "line",
    [
        "ray job submit --runtime-env=e.yaml -- python3 -m verl.trainer.main_ppo a=1",
        "nohup python3 -u -m verl.trainer.main_ppo a=1 > log 2>&1 &",
        'bash -c "python3 -m verl.trainer.main_ppo a=1"',
        "python3 verl/trainer/main_ppo.py a=1",
        "CMD='python3 -m recipe.dapo.main_dapo a=1'\neval $CMD",
        'L=(uv run python3)\n"${L[@]}" -m verl.trainer.main_ppo a=1 | tee x',
        "mkdir -p x && python3 -m verl.experimental.fully_async_policy.fully_async_main a=1",
    ],
)
def test_a_training_is_found_behind_what_starts_it(line: str) -> None:
    assert arguments(line) == ["a=1"]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("torchrun -m verl.trainer.fsdp_sft_trainer a=1", "corerl sft"),
        ("python3 -m verl.trainer.main_generation a=1", "corerl generate"),
        ("python3 -m verl.model_merger merge --backend fsdp", "corerl export"),
        ("python3 -m recipe.spin.main_spin a=1", "a trainer of its own"),
        ("echo hello", "no command here starts verl"),
    ],
)
def test_what_is_no_training_is_refused_with_the_command_for_it(line: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        of_script(line, {})


def test_an_open_quote_is_named() -> None:
    with pytest.raises(ConfigError, match="of line 2 has no end"):
        of_script("a=1\npython3 'x", {})


def test_a_variable_that_is_set_nowhere_keeps_its_name() -> None:
    found = of_script(f"{START} m=$MODEL n=${{NODES}}", {})
    assert found.launches[0].arguments == ["m=$MODEL", "n=$NODES"]
    assert found.unset == {"MODEL", "NODES"}


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "made"
    run(f"touch {mark}\nA=$(touch {mark})\n`touch {mark}`\neval 'touch {mark}'", Variables({}))
    assert not mark.exists()


def test_a_function_that_calls_itself_and_a_long_loop_end() -> None:
    assert run("f() { f; }\nf\nfor i in $(seq 9); do for j in $(seq 9); do f; done; done", Variables({})).calls <= 500


@pytest.mark.parametrize("line", ["A=$A$A", 'A=("${A[@]}" "${A[@]}")', 'A+="$A"'])
def test_a_variable_that_doubles_ends_with_an_error(line: str) -> None:
    with pytest.raises(ConfigError, match=r"the script's (variable|array) A has more than"):
        run(f"A=x\nfor i in {{1..60}}; do {line}; done", Variables({}))


def test_words_may_begin_with_the_program_or_not() -> None:
    assert of_words(["python3", "-m", "verl.trainer.main_ppo", "a=1"]).arguments == ["a=1"]
    assert of_words(["a=1"]).arguments == ["a=1"]


def test_a_word_that_is_a_variable_set_nowhere_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"{START} a=1 ${{EXTRA}} b=$((NODES * 8))\n")
    source = read([str(tmp_path / "run.sh")], {})
    assert source.launch.arguments == ["a=1", "b=$((NODES * 8))"]
    assert [str(remark) for remark in source.remarks] == ["$EXTRA: is set nowhere: the command gets no word for it"]


@pytest.mark.parametrize(
    "check",
    [
        "if [ ! -f $HOME/train.parquet ]; then echo missing; exit 1; fi",
        "[[ -d /data/models ]] || { echo missing; exit 2; }",
        "if ! curl -sf $URL >/dev/null; then exit 1; fi",
        'die() { echo "$1"; exit 1; }\n[ -n "$WANDB_API_KEY" ] || die "set WANDB_API_KEY"',
        'if [ $# -lt 1 ]; then echo "usage: $0 MODEL"; exit 1; fi',
    ],
)
def test_a_check_that_ends_the_script_on_this_machine_is_passed_and_named(check: str) -> None:
    found = of_script(f"{check}\n{START} x=1", {})
    assert ([launch.arguments for launch in found.launches], found.passed) == ([["x=1"]], True)


def test_a_script_that_ends_behind_its_training_is_not_followed_further() -> None:
    found = of_script(f"{START} x=1\n[ -f result ] || exit 1\n{START} x=2", {})
    assert ([launch.arguments for launch in found.launches], found.passed) == ([["x=1"]], False)


def test_an_end_with_success_is_final() -> None:
    with pytest.raises(ConfigError, match="no command here starts verl"):
        of_script(f"exit 0\n{START} x=1", {})
