//! Commands that are plainly read-only, by program and options; every other command needs an
//! answer.
//!
//! Two things make an error here cheap: such a command runs in a sandbox without writes and without
//! network, and it names only paths of the Workspace. `git` is not in the list, because a
//! repository's own config can make it start programs.

use super::options::is_one_of;
use super::shell::{ShellScript, ShellWord};

/// Programs that are read-only with any option; names separated by blanks.
const READ_ONLY_PROGRAMS: &str = "basename cat cksum cmp comm cut df diff dirname du echo egrep expr \
    false fgrep file fold grep head id jq ls md5sum nl nproc od paste pwd readlink realpath rev \
    seq sha1sum sha256sum sha512sum stat strings tac tail tr true type uname wc which whoami";

/// Programs that are read-only without these options.
const READ_ONLY_UNLESS: &[(&str, &[&str])] = &[
    ("date", &["-s", "--set"]),
    // The name of a variable may hold a command.
    ("printf", &["-v"]),
    (
        "find",
        &[
            "-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fprintf",
            "-fls",
        ],
    ),
    ("rg", &["--pre", "--pre-glob", "-z", "--search-zip", "--hostname-bin"]),
    ("sort", &["-o", "--output", "-T", "--temporary-directory", "--compress-program"]),
    ("tree", &["-o", "--output"]),
];

/// Whether a command line is plainly read-only.
pub fn is_read_only_script(command: &str) -> bool {
    let Some(script) = ShellScript::parse(command) else { return false };
    script
        .plain_commands()
        .is_some_and(|commands| commands.iter().all(|words| is_read_only_command(words)))
}

/// Whether one simple command is read-only.
pub fn is_read_only_command(words: &[ShellWord]) -> bool {
    let Some((program, arguments)) = words.split_first() else { return false };
    let stays = arguments.iter().all(stays_inside);
    let name = program.text.as_str();
    if is_one_of(name, READ_ONLY_PROGRAMS) {
        return stays;
    }
    // Without an operand `cd` leads to the home folder, and with `-` to the previous folder.
    if name == "cd" {
        let is_folder = |word: &ShellWord| !word.has_pattern && !word.text.starts_with('-');
        return stays && matches!(arguments, [only] if is_folder(only) && !only.text.is_empty());
    }
    // `uniq` writes to its second operand.
    if name == "uniq" {
        let operands = arguments.iter().filter(|word| !word.text.starts_with('-'));
        return stays && operands.count() <= 1;
    }
    let found = READ_ONLY_UNLESS.iter().find(|(unless, _)| *unless == name);
    found.is_some_and(|(_, options)| {
        stays && !arguments.iter().any(|word| options.iter().any(|option| is_option(word, option)))
    })
}

/// Whether a word is that option, alone, with its value, or among other letters.
fn is_option(word: &ShellWord, option: &str) -> bool {
    let text = word.text.as_str();
    let is_letter = option.len() == 2;
    if is_letter {
        let letters = text.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        return letters.is_some_and(|letters| letters.contains(&option[1..]));
    }
    // GNU programs accept abbreviated long options.
    let name = text.split('=').next().unwrap_or(text);
    let is_beginning = name.starts_with("--") && name.len() > 2 && option.starts_with(name);
    name == option || is_beginning
}

/// Whether a word names nothing outside of the Workspace.
fn stays_inside(word: &ShellWord) -> bool {
    let text = word.text.as_str();
    let leaves =
        |text: &str| text.starts_with(['/', '~']) || text.split('/').any(|part| part == "..");
    let value = text.split_once('=').map_or("", |(_, value)| value);
    // A path may follow an option letter without a blank.
    let glued = text
        .strip_prefix('-')
        .map_or("", |rest| rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric()));
    // A lone slash is a field separator, as in `cut -d/`.
    let leaves_glued = glued != "/" && leaves(glued);
    text == "/dev/null" || !(leaves(text) || leaves(value) || leaves_glued)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_reads_are_read_only() {
        for command in [
            "ls -la src",
            "cat README.md",
            "grep -rn 'fn main' src | head -20",
            "wc -l src/*.rs",
            "pwd",
            "cd src && ls",
            "find . -name '*.rs' -type f",
            "rg -n todo",
            "sort a | uniq -c",
            "ls 2>/dev/null",
            "ls missing 2>&1 | tail -1",
            "echo hello; true",
            "tree -L 2",
            "head -n 5 \"a file\"",
            "ls # nothing else",
            "! grep x y",
            "date +%F",
            "cut -d/ -f2 a",
            "printf '%s\\n' a-v",
        ] {
            assert!(is_read_only_script(command), "{command}");
        }
    }

    #[test]
    fn everything_else_is_asked() {
        for command in [
            "",
            "rm x",
            "cargo test",
            "git status",
            "git -c core.pager=sh log",
            "ls > out",
            "cat a >> b",
            "echo $(rm x)",
            "echo `rm x`",
            "cat $FILE",
            "find . -delete",
            "find . -exec rm {} +",
            "find . -fprintf out x",
            "sort -o a b",
            "sort -ro a b",
            "sort --out=a b",
            "sort --compress-program=sh a",
            "uniq a b",
            "tree -o x",
            "rg --pre sh x",
            "rg --pre=sh x",
            "date -s 2020-01-01",
            "date --set=x",
            "env ls",
            "sudo ls",
            "sh -c ls",
            "ls &",
            "ls | sh",
            "ls && rm x",
            "cat /etc/passwd",
            "cat ~/.ssh/id_rsa",
            "cat ../x",
            "grep --file=/etc/passwd x",
            "ls 2> err",
            "cat < /etc/passwd",
            "A=1 ls",
            "PATH=. ls",
            "./ls",
            "/bin/ls",
            "xargs rm",
            "awk '{print}' a",
            "sed -i s/a/b/ x",
            "tee x",
            "(ls)",
            "ls\nrm x",
            "f() { rm x; }",
            "echo 'open",
            "cat <(rm x)",
            "cat <<< $(rm x)",
            "ls \\; rm",
            "cd",
            "cd && cat .netrc",
            "cd - && ls",
            "cd -P && ls",
            "cd '' && ls",
            "printf -v 'a[$(rm x)]' y",
            "grep -f/etc/passwd x",
            "grep -rf../x y",
            "ls\u{b}-la",
            "cat\u{a0}x",
        ] {
            assert!(!is_read_only_script(command), "{command}");
        }
    }
}
