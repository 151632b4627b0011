//! Shapes of commands: ways in which a command can start processes that stay.
//!
//! `HOLD` is replaced by the last command of the shell, `true` or `sleep`; `PYTHON` by an interpreter.
//! Every process inherits the mark in its environment; one that clears it carries the mark as its name.

/// One shape: a shell script and the processes that it starts.
#[derive(Clone, Copy)]
pub struct CommandShape {
    pub name: &'static str,
    pub script: &'static str,
    /// Least number of marked processes when the shape is up, including its shell.
    pub least: usize,
    /// Programs that the script needs.
    pub needs: &'static [&'static str],
}

const fn shape(name: &'static str, least: usize, script: &'static str) -> CommandShape {
    CommandShape { name, script, least, needs: &[] }
}

const fn with_needs(needs: &'static [&'static str], shape: CommandShape) -> CommandShape {
    CommandShape { needs, ..shape }
}

pub const SHAPES: &[CommandShape] = &[
    shape("plain", 1, "touch up; HOLD"),
    shape("pipeline", 3, "touch up; HOLD | cat | cat"),
    shape("background, pipe held open", 2, "sleep 300 & touch up; HOLD"),
    shape(
        "background, talking",
        2,
        "(while :; do echo still here; sleep 0.05; done) & touch up; HOLD",
    ),
    shape("disowned", 2, "sleep 300 >/dev/null 2>&1 & disown; touch up; HOLD"),
    shape("nohup", 2, "nohup sleep 300 >/dev/null 2>&1 & touch up; HOLD"),
    shape("new session", 2, "setsid sleep 300 & touch up; HOLD"),
    shape(
        "session in a session",
        4,
        "setsid bash -c 'setsid bash -c \"setsid sleep 300 & sleep 300\" & sleep 300' & touch up; HOLD",
    ),
    with_needs(
        &["perl"],
        shape(
            "daemon by double fork",
            2,
            "perl -MPOSIX -e 'fork and exit; POSIX::setsid(); fork and exit; chdir \"/\"; \
             open STDIN, \"</dev/null\"; open STDOUT, \">/dev/null\"; open STDERR, \">/dev/null\"; \
             sleep 300'; touch up; HOLD",
        ),
    ),
    shape(
        "deaf to TERM, HUP and INT",
        2,
        "trap '' TERM HUP INT; (while :; do sleep 1; done) & touch up; HOLD; HOLD",
    ),
    shape("stopped", 2, "sleep 300 & kill -STOP $!; touch up; HOLD"),
    shape(
        "chain of forks",
        7,
        "f() { [ $1 -gt 0 ] && f $(($1 - 1)) & sleep 300; }; f 5 & touch up; HOLD",
    ),
    shape("orphans", 4, "for i in 1 2 3; do (sleep 300 &); done; touch up; HOLD"),
    shape("crowd", 31, "for i in $(seq 30); do sleep 300 & done; touch up; HOLD"),
    with_needs(
        &["perl"],
        shape(
            "maker of zombies",
            2,
            "perl -e 'for (1..5) { fork or exit } sleep 300' & touch up; HOLD",
        ),
    ),
    with_needs(
        &["perl"],
        shape(
            "chain of execs",
            2,
            "sh -c 'exec sh -c \"exec perl -e \\\"exec q(sleep), 300\\\"\"' & touch up; HOLD",
        ),
    ),
    shape(
        "respawned by its trap",
        2,
        "again() { trap 'again & exit' TERM EXIT; sleep 300 & wait; }; (again) & touch up; HOLD",
    ),
    shape(
        "respawned by its parent",
        2,
        "(trap '' TERM; while :; do sleep 300; done) & touch up; HOLD",
    ),
    with_needs(
        &["perl"],
        shape(
            "group of its own, under another name",
            2,
            "perl -e 'setpgrp(0, 0); $0 = \"MARK\"; sleep 300' & touch up; HOLD",
        ),
    ),
    shape("coprocess", 2, "coproc { cat; sleep 300; }; touch up; HOLD"),
    shape(
        "reader of a here-document",
        2,
        "{ cat; sleep 300; } <<END &\none\ntwo\nEND\ntouch up; HOLD",
    ),
    with_needs(
        &["perl"],
        shape(
            "all descriptors closed",
            2,
            "perl -MPOSIX -e 'POSIX::close($_) for 0..255; sleep 300' & touch up; HOLD",
        ),
    ),
    shape(
        "holder of a fifo",
        3,
        "mkfifo $TMPDIR/fifo-$$ && { cat $TMPDIR/fifo-$$ & (exec 3<>$TMPDIR/fifo-$$; sleep 300) & }; \
         touch up; HOLD",
    ),
    with_needs(
        &["script"],
        shape(
            "terminal of its own",
            2,
            "script -qc 'sleep 300' /dev/null </dev/null & touch up; HOLD",
        ),
    ),
    with_needs(
        &["python3"],
        shape(
            "python, forked and spawned by vfork",
            3,
            "PYTHON -c 'import os, subprocess, time; os.fork(); subprocess.Popen([\"sleep\", \"300\"]); \
             time.sleep(300)' & touch up; HOLD",
        ),
    ),
    shape("under timeout", 3, "timeout 300 sleep 300 & touch up; HOLD"),
    shape("xargs -P", 4, "seq 3 | xargs -P 3 -I{} sleep 30{} & touch up; HOLD"),
    shape("no environment", 2, "env -i bash -c 'exec -a MARK sleep 300' & touch up; HOLD"),
    with_needs(
        &["perl"],
        shape(
            "always on the move",
            2,
            "perl -e '$SIG{TERM} = \"IGNORE\"; while (1) { fork and exit; select undef, undef, undef, 0.02 }' \
             & touch up; HOLD",
        ),
    ),
];

/// The command of a shape; `hold` says whether its shell stays.
pub fn command(shape: &CommandShape, mark: &str, hold: bool, python: &str) -> String {
    let hold = if hold { "sleep 300" } else { "true" };
    let script = shape.script.replace("HOLD", hold).replace("PYTHON", python);
    format!("export SHAPE_MARK={mark}; {}", script.replace("MARK", mark))
}
