//! Options that a command prefix does not cover: those that write a file, start a program, or name
//! settings that could.
//!
//! Who allows `git log …` for good means looking at the log, not `--output=FILE`. Programs that
//! mostly look are covered with the options that are known to do no more; every other one is asked
//! about again.

/// What a prefix covers of one program and its command; an empty command means every one.
struct CoveredOptions {
    program: &'static str,
    commands: &'static [&'static str],
    options: Options,
}

/// Options by name. A letter with `=` takes a value.
enum Options {
    /// All but these, which do more.
    AllBut(&'static [&'static str]),
    /// These and no others, because those are not known to be harmless.
    Only(&'static str),
}

use Options::{AllBut, Only};

/// Programs whose long options have one dash, so that letters are not put together.
const LONG_WITH_ONE_DASH: &[&str] =
    &["cc", "clang", "cmake", "ctest", "g++", "gcc", "go", "rustc", "terraform", "zip"];

const COVERED: &[CoveredOptions] = &[
    of("apt", AllBut(&["-o", "--option", "-c", "--config-file"])),
    of(
        "cargo",
        AllBut(&[
            "--config",
            "-Z",
            "-C",
            "--manifest-path",
            "--target-dir",
            "--out-dir",
            "--artifact-dir",
            "--root",
            "--path",
        ]),
    ),
    of("cc", AllBut(&["-wrapper", "-fplugin", "-specs", "-B"])),
    of("clang", AllBut(&["-fplugin", "-B", "-Xclang"])),
    of("cmake", AllBut(&["-P", "-E", "-C", "--build"])),
    of("composer", AllBut(&["-d", "--working-dir"])),
    of("ctest", AllBut(&["-S", "-SP", "--script", "--build-and-test", "-D", "--dashboard"])),
    of("curl", Only(CURL)),
    of("fd", AllBut(&["-x", "-X", "--exec", "--exec-batch"])),
    of("fdfind", AllBut(&["-x", "-X", "--exec", "--exec-batch"])),
    of("g++", AllBut(&["-wrapper", "-fplugin", "-specs", "-B"])),
    of("gcc", AllBut(&["-wrapper", "-fplugin", "-specs", "-B"])),
    of(
        "git",
        AllBut(&[
            "--config",
            "--config-env",
            "--exec",
            "--exec-path",
            "--export-marks",
            "--ext-diff",
            "--open-files-in-pager",
            "--output",
            "--output-directory",
            "--receive-pack",
            "--separate-git-dir",
            "--template",
            "--textconv",
            "--upload-pack",
        ]),
    ),
    with("git", &["archive", "bugreport", "diagnose", "format-patch"], AllBut(&["-o"])),
    with("git", &["clone", "fetch", "ls-remote", "pull"], AllBut(&["-c", "-u"])),
    with("git", GIT_LOG_COMMANDS, Only(GIT_LOG)),
    with("git", &["grep"], Only(GIT_GREP)),
    of(
        "go",
        AllBut(&[
            "-exec",
            "-toolexec",
            "-overlay",
            "-vettool",
            "-modfile",
            "-ldflags",
            "-gcflags",
            "-asmflags",
            "-gccgoflags",
            "-compiler",
            "-pkgdir",
            "-C",
            "-o",
            "-coverprofile",
            "-cpuprofile",
            "-memprofile",
            "-blockprofile",
            "-mutexprofile",
            "-trace",
            "-outputdir",
        ]),
    ),
    of("gradle", AllBut(&["-I", "--init-script", "-c", "-b", "-p", "--project-dir"])),
    of("helm", AllBut(&["--post-renderer"])),
    of(
        "npm",
        AllBut(&[
            "--script-shell",
            "--shell",
            "--node-options",
            "--userconfig",
            "--globalconfig",
            "--prefix",
            "-C",
            "-c",
            "--call",
            "--git",
            "--editor",
            "--viewer",
        ]),
    ),
    of("pip", AllBut(&["--config-settings", "--python", "--target", "-t", "--prefix", "--root"])),
    of("pip3", AllBut(&["--config-settings", "--python", "--target", "-t", "--prefix", "--root"])),
    of(
        "pnpm",
        AllBut(&[
            "--script-shell",
            "--shell-mode",
            "-c",
            "--dir",
            "-C",
            "--config-dir",
            "--prefix",
        ]),
    ),
    of("rg", AllBut(&["--pre", "--pre-glob", "--hostname-bin", "-z", "--search-zip"])),
    of("rustc", AllBut(&["-C", "--codegen", "-Z"])),
    of("sort", AllBut(&["-o", "--output", "-T", "--temporary-directory", "--compress-program"])),
    of("split", AllBut(&["--filter"])),
    of("tree", AllBut(&["-o", "--output"])),
    of("wget", Only(WGET)),
    of("yarn", AllBut(&["--script-shell", "--cwd", "--use-yarnrc"])),
    of("yq", AllBut(&["-i", "--inplace", "-s", "--split-exp"])),
    of("zip", AllBut(&["-TT", "--unzip-command", "--test-command"])),
];

const CURL: &str = "-# -4 -6 -A= -G -I -L -N -S -f -g -i -m= -r= -s -v --compressed --connect-timeout --fail \
    --fail-with-body --get --head --http1.1 --http2 --include --ipv4 --ipv6 --location \
    --max-time --no-buffer --no-progress-meter --progress-bar --range --retry --show-error \
    --silent --user-agent --verbose";

/// It writes the file of the address, which is what it is for.
const WGET: &str = "-4 -6 -S -T= -U= -c -q -t= -v --continue --no-verbose --quiet --server-response --spider \
    --timeout --tries --user-agent --verbose";

/// Commands of git that take the address of a repository.
const GIT_WITH_ADDRESS: &[&str] =
    &["archive", "clone", "fetch", "ls-remote", "pull", "push", "remote"];

/// Commands of git that look, and share most options.
const GIT_LOG_COMMANDS: &[&str] = &[
    "blame",
    "cat-file",
    "describe",
    "diff",
    "diff-files",
    "diff-index",
    "diff-tree",
    "log",
    "ls-files",
    "ls-tree",
    "merge-base",
    "name-rev",
    "range-diff",
    "reflog",
    "rev-list",
    "rev-parse",
    "shortlog",
    "show",
    "show-branch",
    "show-ref",
    "status",
    "whatchanged",
];

const GIT_LOG: &str = "-B -C= -D -E -F -G= -L= -M= -P -R -S= -U= -a -b -c -d -e -g -h -i -l= -m -n= -o -p -q -r \
    -s -t -u -v -w -z --abbrev --abbrev-commit --abbrev-ref --after --all --all-match --always \
    --ancestry-path --author --author-date-order --before --boundary --branch --branches \
    --cached --cc --check --cherry --cherry-mark --cherry-pick --children --color \
    --color-moved --color-words --column --combined-all-paths --committer --contains --count \
    --date --date-order --decorate --decorate-refs --deleted --dirstat --dirty --email \
    --encoding --exact-match --exclude --exclude-standard --exit-code --extended-regexp \
    --find-copies --find-copies-harder --find-object --find-renames --first-parent \
    --fixed-strings --follow --format --full-diff --full-history --full-index --full-name \
    --full-tree --function-context --glob --graph --grep --heads --histogram \
    --ignore-all-space --ignore-blank-lines --ignore-case --ignore-cr-at-eol \
    --ignore-space-at-eol --ignore-space-change --ignore-submodules --ignored --incremental \
    --indent-heuristic --inter-hunk-context --invert-grep --is-ancestor --is-inside-work-tree \
    --left-only --left-right --line-porcelain --long --match --max-count --max-parents \
    --merge-base --merged --merges --min-parents --minimal --modified --mailmap --name-only \
    --name-status --no-abbrev --no-color --no-decorate --no-ext-diff --no-mailmap --no-merges \
    --no-notes --no-patch --no-prefix --no-renames --no-textconv --no-walk --not --notes \
    --null --numbered --numstat --object-only --objects --oneline --others --parents --patch \
    --patch-with-raw --patch-with-stat --patience --pickaxe-all --pickaxe-regex --porcelain \
    --pretty --quiet --raw --regexp-ignore-case --relative --remotes --reverse --right-only \
    --root --short --shortstat --show-current --show-email --show-name --show-notes \
    --show-number --show-prefix --show-pulls --show-signature --show-stash --show-toplevel \
    --simplify-by-decoration --simplify-merges --since --skip --source --sparse --stage \
    --staged --stat --submodule --summary --symbolic --symbolic-full-name --tags --text \
    --topo-order --unified --unmerged --until --untracked-files --verbose --verify \
    --walk-reflogs --word-diff --word-diff-regex";

const GIT_GREP: &str = "-A= -B= -C= -E -F -G -H -I -L -P -W -a -c -e= -h -i -l -m= -n -o -p -q -r -v -w -x -z \
    --after-context --all-match --and --basic-regexp --before-context --break --cached --color \
    --column --context --count --exclude-standard --extended-regexp --files-with-matches \
    --files-without-match --fixed-strings --full-name --function-context --heading \
    --ignore-case --invert-match --line-number --max-count --max-depth --name-only --no-color \
    --no-index --no-textconv --not --null --only-matching --or --perl-regexp --quiet \
    --recurse-submodules --recursive --show-function --text --threads --untracked \
    --word-regexp";

const fn of(program: &'static str, options: Options) -> CoveredOptions {
    CoveredOptions { program, commands: &[], options }
}

const fn with(
    program: &'static str,
    commands: &'static [&'static str],
    options: Options,
) -> CoveredOptions {
    CoveredOptions { program, commands, options }
}

/// Whether the words behind a program have only options that a prefix covers.
pub fn are_covered(program: &str, words: &[String]) -> bool {
    let command = words.first().map(String::as_str).unwrap_or_default();
    let takes_address = program == "git" && GIT_WITH_ADDRESS.contains(&command);
    // An address such as `ext::sh -c …` names a program.
    if takes_address && words.iter().any(|word| word.contains("::")) {
        return false;
    }
    let has_letters = !LONG_WITH_ONE_DASH.contains(&program);
    COVERED
        .iter()
        .filter(|of| of.program == program)
        .filter(|of| of.commands.is_empty() || of.commands.contains(&command))
        .all(|of| match &of.options {
            AllBut(options) => !words
                .iter()
                .any(|word| options.iter().any(|one| is_option(word, one, has_letters))),
            Only(options) => words.iter().all(|word| is_known(word, options)),
        })
}

/// Whether a word is that option: alone, with its value, cut short, or among other letters.
fn is_option(word: &str, option: &str, has_letters: bool) -> bool {
    let name = word.split('=').next().unwrap_or(word);
    if !has_letters && name.trim_start_matches('-') == option.trim_start_matches('-') {
        return name.starts_with('-');
    }
    if option.len() == 2 {
        let is_among = || {
            let letters = name.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
            has_letters && letters.is_some_and(|letters| letters.contains(&option[1..]))
        };
        return name.starts_with(option) || is_among();
    }
    let is_beginning = name.starts_with("--") && name.len() > 2 && option.starts_with(name);
    name == option || is_beginning
}

/// Whether a word is no option, or one of these. A value that names a file is none of them.
fn is_known(word: &str, options: &str) -> bool {
    let mut options = options.split(' ');
    if word.starts_with('@') || word.contains("=@") {
        return false;
    }
    let Some(letters) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
        return true;
    };
    if letters == "-" {
        return true;
    }
    if letters.starts_with('-') {
        let name = word.split('=').next().unwrap_or(word);
        return options.any(|option| option == name);
    }
    let short: Vec<&str> = options.filter(|option| !option.starts_with("--")).collect();
    for letter in letters.chars().filter(|letter| !letter.is_ascii_digit()) {
        match short.iter().find(|option| option[1..].starts_with(letter)) {
            None => return false,
            // What follows is its value.
            Some(option) if option.ends_with('=') => return true,
            Some(_) => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(command: &str) -> bool {
        let mut words = command.split(' ').map(str::to_owned);
        let program = words.next().unwrap();
        are_covered(&program, &words.collect::<Vec<_>>())
    }

    #[test]
    fn options_that_only_look_are_covered() {
        for command in [
            "git log",
            "git log -3 --oneline --stat -p",
            "git log -n5 --author=x --since=yesterday -- src",
            "git log -Sneedle -L1,5:a.rs --format=%h",
            "git diff --cached -U10 HEAD~2",
            "git show HEAD:a.rs",
            "git status -sb",
            "git grep -n -i -C3 todo::x",
            "cmake -S . -DCMAKE_BUILD_TYPE=Debug",
            "git blame -w a.rs",
            "git commit -m x -o a.rs",
            "git push -u origin main",
            "cargo test --all -- --nocapture",
            "cargo build --release -p x",
            "go test -run X -v ./...",
            "npm test -- --watch=false",
            "rg -n --pretty todo",
            "sort -rn -k2 a",
            "curl -sSfL https://example.org/a",
            "wget -q https://example.org/a",
            "gcc -O2 -DBAR -o a a.c",
            "fd -e rs",
        ] {
            assert!(covered(command), "{command}");
        }
    }

    #[test]
    fn options_that_write_or_start_programs_are_not() {
        for command in [
            "git log --output=x",
            "git log --output x",
            "git log --outp=x",
            "git log --o=x",
            "git log -O/x",
            "git log --ext-diff",
            "git log --textconv",
            "git log --unheard-of",
            "git log -- --output=x",
            "git diff --output=x",
            "git show --outpu=x HEAD",
            "git diff --no-index --ext-diff a b",
            "git grep -O x",
            "git grep -Oless x",
            "git grep -nO x",
            "git grep --open-files-in-pager=sh x",
            "git grep --open x",
            "git grep -f /etc/passwd",
            "git format-patch -o x",
            "git format-patch -3o x",
            "git format-patch --output-dir=x",
            "git archive -ox HEAD",
            "git archive --output=x HEAD",
            "git archive --exec=x HEAD",
            "git fetch --upload-pack=x",
            "git fetch ext::sh",
            "git push --receive-pack=x",
            "git clone -cx=y u",
            "git commit --template=x",
            "sort -o x a",
            "sort -ox a",
            "sort -ro x a",
            "sort --outp=x a",
            "sort -T x a",
            "sort --compress-program=x a",
            "rg --pre x a",
            "rg --pre=x a",
            "rg -z a",
            "rg -nz a",
            "fd -x rm",
            "fd -Hx rm",
            "fd --exec-batch rm",
            "curl -o x u",
            "curl -ox u",
            "curl -sO u",
            "curl -sox u",
            "curl -T x u",
            "curl --upload-file x u",
            "curl -K x u",
            "curl --config x u",
            "curl -d @x u",
            "curl --data-binary @x u",
            "curl -F a=@x u",
            "curl -w %output{x} u",
            "curl -D x u",
            "curl -c x u",
            "curl --outpu x u",
            "curl --stderr x u",
            "wget -O x u",
            "wget -Ox u",
            "wget -qO- u",
            "wget --output-document=x u",
            "wget -P x u",
            "wget -e x u",
            "wget -i x",
            "wget --post-file=x u",
            "cargo test --config x",
            "cargo test --conf x",
            "cargo test -Zx",
            "cargo test --manifest-path=x",
            "cargo build --target-dir x",
            "npm test --prefix x",
            "npm test --prefix=x",
            "npm test --script-shell=x",
            "npm test --script-s x",
            "npm test -C x",
            "pnpm test -C x",
            "yarn test --cwd x",
            "go test -exec x",
            "go test --exec=x",
            "go build -toolexec=x",
            "go build -o x",
            "go build -ldflags=-extld=x",
            "go test -coverprofile=x",
            "go vet -vettool=x",
            "cmake -P x",
            "cmake -E rm x",
            "ctest -S x",
            "split --filter=x a",
            "tree -o x",
            "yq -i . a",
            "gcc -wrapper x a.c",
            "gcc -fplugin=x a.c",
            "gcc -Bx a.c",
            "apt install -o x=y a",
        ] {
            assert!(!covered(command), "{command}");
        }
    }
}
