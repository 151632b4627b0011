//! Command prefixes: the leading words by which the user may approve similar commands of a project.
//!
//! A prefix is offered only for simple commands of known words, and for programs that are known not
//! to run their arguments.

use super::options;
use super::shell::ShellScript;

/// The prefix that could be offered as a lasting approval of this command.
pub fn offer_prefix(command: &str) -> Option<Vec<String>> {
    let mut words = ShellScript::parse(command)?.simple_words()?;
    let (program, rest) = words.split_first()?;
    let length = options::covered_words(program, rest)?;
    words.truncate(length);
    Some(words)
}

/// Whether a command is simple and begins with these words.
pub fn prefix_covers(prefix: &[String], command: &str) -> bool {
    // A command without a prefix to offer is never covered, whatever the file of approvals says.
    if prefix.is_empty() || offer_prefix(command).is_none() {
        return false;
    }
    let words = ShellScript::parse(command).and_then(|script| script.simple_words());
    words.is_some_and(|words| words.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(command: &str, expected: Option<&str>) {
        assert_eq!(
            offer_prefix(command).map(|words| words.join(" ")).as_deref(),
            expected,
            "{command}"
        );
    }

    #[test]
    fn a_simple_command_offers_its_first_words() {
        check("cargo test --all", Some("cargo test"));
        check("cargo run -- x", Some("cargo run"));
        check("git commit -m 'a; b'", Some("git commit"));
        check("npm run build", Some("npm run build"));
        check("pytest -q", Some("pytest"));
        check("mkdir -p a/b", Some("mkdir"));
        check("git push -u origin main", Some("git push"));
        check("git commit -c HEAD", Some("git commit"));
        check("go test -run X ./...", Some("go test"));
        check("rg --pretty x", Some("rg"));
    }

    #[test]
    fn what_can_run_anything_offers_nothing() {
        for command in [
            "bash x",
            "sh -c ls",
            "python3 x.py",
            "python3.12 x.py",
            "node x",
            "sudo ls",
            "env ls",
            "xargs rm",
            "npx x",
            "npm exec x",
            "pnpm dlx x",
            "uv run x",
            "bundle exec x",
            "./x",
            "/bin/ls",
            "../x",
            "cargo",
            "cargo --config x test",
            "git -c a=b log",
            "git",
            "make all",
            "cargo test; rm x",
            "cargo test | sh",
            "cargo test > x",
            "cargo test $(x)",
            "A=1 cargo test",
            "cargo test *",
            "find . -exec x",
            "timeout 5 x",
            "npm run",
            "go run x",
            "eval x",
            "git config x",
            "PYTHON3 x",
            "",
            "perl5.36 x",
            "bunx x",
            "tar cf a --to-command=x b",
            "let 'a[$(x)]'",
            "git rebase -x make main",
            "git submodule foreach x",
            "uv tool run x",
            "cp\u{b}/x -c y",
            "git clone -c core.fsmonitor=x u",
            "git clone -ccore.fsmonitor=x u",
            "git clone --config=core.fsmonitor=x u",
            "git fetch --upload-pack=x u",
            "git fetch --upload-pa x u",
            "git push --receive-pack x u",
            "git grep -Ox y",
            "git log --ext-diff",
            "git archive --remote=u --exec=x HEAD",
            "cargo test --config 'build.rustc-wrapper=\"x\"'",
            "go test -exec x ./...",
            "go build -toolexec=x",
            "npm test --script-shell=x",
            "npm test --script-shel x",
            "apt install -o DPkg::Pre-Invoke::=x y",
            "sort --compress-program=x y",
            "rg --pre x y",
            "split --filter=x y",
            "wget -e use_proxy=on u",
            "gcc -wrapper x a.c",
            "mvn exec:exec",
            "git log --output=x",
            "git log --outp=x",
            "git hook run x",
            "find . -delete",
            "find . -fprint x",
            "sort -o x y",
            "tee x",
            "dd of=x",
            "sed -i s/a/b/ x",
            "sed 's/a/b/w x' y",
            "tar cf a --checkpoint-action=exec=x b",
            "curl -o x u",
            "curl -K x",
            "wget -O x u",
            "awk 'BEGIN{system(\"x\")}'",
            "npm test --prefix x",
            "make -f x",
            "make SHELL=x",
            "python3 -c x",
            "python3 -m x",
            "node -e x",
            "node --require x y",
            "crontab x",
            "nc -e x",
        ] {
            check(command, None);
        }
    }

    #[test]
    fn a_prefix_covers_whole_words_of_simple_commands() {
        let prefix = ["cargo".to_owned(), "test".to_owned()];
        assert!(prefix_covers(&prefix, "cargo test"));
        assert!(prefix_covers(&prefix, "cargo 'test' -- --nocapture"));
        for command in [
            "cargo testing",
            "cargo build",
            "cargo test && rm x",
            "cargo test > x",
            "cargo",
            "cargo test `x`",
            "cargo test --config x",
        ] {
            assert!(!prefix_covers(&prefix, command), "{command}");
        }
        let log = ["git".to_owned(), "log".to_owned()];
        assert!(prefix_covers(&log, "git log --oneline -5"));
        for command in
            ["git log --output=x", "git log --outp x", "git log -p --ext-diff", "git log --new"]
        {
            assert!(!prefix_covers(&log, command), "{command}");
        }
        assert!(!prefix_covers(&[], "cargo test"));
        assert!(
            !prefix_covers(&["bash".to_owned()], "bash x"),
            "a planted entry allows nothing more"
        );
    }
}
