//! What a command prefix covers: programs that are known, and those of their options and operands
//! that do not write elsewhere, start a program, or name settings that could.
//!
//! Who allows `git log …` for good means looking at the log, not `--output=FILE`. A program, a
//! command or an option that is not listed here is asked about again.

/// What a prefix covers of some programs.
struct Covered {
    /// Names, parted by blanks.
    programs: &'static str,
    /// The words that say what it does, such as `log` or `stash list`, parted by commas; `*` is any
    /// name. Without one, the program alone says it.
    commands: &'static str,
    options: Options,
}

/// Options by name, parted by blanks. A letter with `=` takes a value.
enum Options {
    All,
    /// All but these, which do more. One that ends with a comma is the beginning of others.
    AllBut(&'static str),
    /// These and no others, because those are not known to be harmless.
    Only(&'static str),
    /// The same, with so many operands at most: a further one is a file that is written.
    Operands(usize, &'static str),
}

use Options::{All, AllBut, Only, Operands};

const fn of(programs: &'static str, options: Options) -> Covered {
    Covered { programs, commands: "", options }
}

const fn with(programs: &'static str, commands: &'static str, options: Options) -> Covered {
    Covered { programs, commands, options }
}

const COVERED: &[Covered] = &[
    // They look, whatever they are told.
    of(
        "base32 base64 basename cat cksum cmp column comm cut df diff dirname du echo egrep expand expr \
         false fgrep fmt fold grep head hexdump id join jq ls md5sum nl nproc numfmt od paste pgrep ps \
         pwd readelf readlink realpath rev seq sha1sum sha224sum sha256sum sha384sum sha512sum \
         shellcheck sleep stat strings sum tac tail tr true tsort type uname unexpand uptime wc which \
         whoami",
        All,
    ),
    // They change the files that they are given, as their names say.
    of(
        "bunzip2 bzip2 chmod chown cp csplit gunzip gzip kill ln mkdir mktemp mv pkill rm rmdir touch \
         truncate unxz unzip xz zstd",
        All,
    ),
    of("date", AllBut("-s --set")),
    of("fd fdfind", AllBut("-x -X --exec --exec-batch")),
    of("file", AllBut("-C --compile")),
    of("iconv shuf", AllBut("-o --output")),
    of("patch", AllBut("-e --ed")),
    of("rg", AllBut("--pre --pre-glob --hostname-bin -z --search-zip")),
    of("sort", AllBut("-o --output -T --temporary-directory --compress-program")),
    of("split", AllBut("--filter")),
    of("tree", AllBut("-o --output -R")),
    of("uniq", Operands(1, UNIQ)),
    of("xxd", Operands(1, "-a -b -c= -d -e -g= -i -l= -n= -o= -p -r -s= -u")),
    of("yq", AllBut("-i --inplace -s --split-exp")),
    of("zip", AllBut("-TT --unzip-command --test-command")),
    of("curl", Only(CURL)),
    of("wget", Only(WGET)),
    // Compilers, formatters and test runners.
    of("cc clang clang++ g++ gcc", AllBut(COMPILER)),
    of("ctest", Only(CTEST)),
    of("pytest py.test", Only(PYTEST)),
    of("clang-format gofmt goimports shfmt", Only("-d -e -i -l -n -s -w --dry-run --Werror")),
    of(
        "biome black eslint flake8 golangci-lint isort jest mocha mypy phpunit prettier pylint pyright \
         rspec rubocop ruff rustfmt stylelint tsc vitest",
        Only(RUNNER),
    ),
    with("ruff biome golangci-lint", "check, format, lint, run", Only(RUNNER)),
    // Programs whose second word says what they do.
    with(
        "apt apt-get",
        "install, list, remove, search, show, update, upgrade",
        AllBut("-o --option -c --config-file"),
    ),
    with("brew", "info, list, outdated, search, update, upgrade", Only(USUAL)),
    with("bundle", "check, install, list, outdated, show, update", Only(USUAL)),
    with(
        "cargo",
        "add, b, bench, build, c, check, clean, clippy, doc, fetch, fmt, metadata, nextest list, \
         nextest run, r, remove, run, search, t, test, tree, update, version",
        Only(CARGO),
    ),
    with("composer", "check, install, outdated, run *, show, test, update, validate", Only(USUAL)),
    with("dotnet", "build, clean, format, restore, test", Only(DOTNET)),
    with(
        "gh",
        "issue list, issue status, issue view, pr checks, pr diff, pr list, pr status, pr view, \
         release list, release view, repo view, run list, run view, workflow list, workflow view",
        Only("-L= -R= -c -q= -s= --comments --json --jq --limit --log --log-failed --repo --state"),
    ),
    with("git", GIT_LOOKS, Only(GIT_LOG)),
    with("git", "grep", Only(GIT_GREP)),
    with("git", "branch, tag", Only(GIT_LIST)),
    with("git", "bundle list-heads, bundle verify, stash list, worktree list", Only(GIT_LOG)),
    with("git", "remote", Operands(0, "-v --verbose")),
    with("git", "remote get-url, remote show", Only("-n --all --push")),
    with("git", "archive, format-patch", AllBut("-o")),
    with("git", "clone, fetch, ls-remote", AllBut("-c -u")),
    with("git", "merge, pull", AllBut("-c -s -u --strategy")),
    with("git", "cherry-pick, revert", AllBut("--strategy")),
    with("git", "add, apply, checkout, commit, init, mv, push, reset, restore, rm, switch", All),
    with("go", "build, fix, fmt, get, install, list, test, version, vet", Only(GO)),
    with("go", "doc", Only("-all -c -cmd -short -src -u")),
    with("go", "env", Only("-json -changed")),
    with("go", "mod download, mod graph, mod tidy, mod verify, mod why", Only("-e -json -m -v -x")),
    with(
        "gradle",
        "assemble, build, check, classes, clean, dependencies, jar, projects, tasks, test",
        Only(GRADLE),
    ),
    with("helm", "get, lint, list, search, show, status, template, version", Only(USUAL)),
    with("hg", "annotate, branches, diff, heads, log, status, summary, tags", Only(HG)),
    with("jj", "diff, log, show, st, status", Only(JJ)),
    with("just rake", "*", Only("-n -q -v --dry-run --quiet --verbose")),
    with("mix", "compile, deps.get, format, test", Only(MIX)),
    with("mvn", "clean, compile, install, package, test, validate, verify", Only(MVN)),
    with("npm pnpm yarn", NPM_COMMANDS, Only(NPM)),
    with("pip pip3", "check, freeze, install, list, show", Only(PIP)),
    with("poetry", "add, build, check, install, lock, remove, show, update", Only(POETRY)),
    with("rails", "about, db:migrate, db:status, routes, stats, test", Only("-b -f -n= -s= -v")),
    with("rustup", "check, show, update", Only(USUAL)),
    with(
        "swift",
        "build, test",
        Only("-c= -v --configuration --filter --parallel --skip --verbose"),
    ),
    with("terraform", "fmt, plan, show, validate, version", Only(TERRAFORM)),
    with("uv", "add, lock, remove, sync, tree, version", Only(UV)),
    with("zig", "build, fmt, test", Only("--check --summary")),
];

/// Programs whose long options have one dash, so that letters are not put together.
const LONG_WITH_ONE_DASH: &[&str] =
    &["cc", "clang", "clang++", "g++", "gcc", "go", "terraform", "zip"];

/// Programs for which `@` begins the name of a file.
const FILES_BEHIND_AT: &[&str] = &["cc", "clang", "clang++", "curl", "g++", "gcc"];

/// Options that no command of git is covered with.
const GIT_NEVER: &str = "--config --config-env --exec --exec-path --export-marks --ext-diff \
    --open-files-in-pager --output --output-directory --receive-pack --separate-git-dir --template \
    --textconv --upload-pack";

/// Commands of git that take the address of a repository.
const GIT_WITH_ADDRESS: &[&str] =
    &["archive", "clone", "fetch", "ls-remote", "pull", "push", "remote"];

/// Commands of git that look, and share most options. `reflog` looks only with `show`.
const GIT_LOOKS: &str = "blame, cat-file, describe, diff, diff-files, diff-index, diff-tree, log, ls-files, \
    ls-tree, merge-base, name-rev, range-diff, reflog show, rev-list, rev-parse, shortlog, show, \
    show-branch, show-ref, status, whatchanged";

const GIT_LIST: &str = "-a -l= -n= -r -v --all --color --column --contains --format --list --merged \
    --no-color --no-contains --no-merged --points-at --remotes --show-current --sort --verbose";

const COMPILER: &str = "-B -Wa, -Wl, -Wp, -Xassembler -Xclang -Xlinker -Xpreprocessor --config --ld-path \
    -fplugin -fuse-ld -iplugindir -load -mllvm -specs -wrapper";

const CTEST: &str = "-E= -L= -N -Q -R= -V -j= --output-on-failure --parallel --progress --rerun-failed \
    --stop-on-failure --timeout --verbose";

/// Without those that name plugins, settings and files: `-p`, `-c`, `-o`, `--rootdir`.
const PYTEST: &str = "-h -k= -l -m= -n= -q -r= -s -v -x --co --collect-only --color --disable-warnings \
    --durations --exitfirst --failed-first --ff --full-trace --last-failed --lf --markers --maxfail \
    --new-first --nf --no-header --no-summary --numprocesses --quiet --runxfail --setup-show \
    --show-capture --showlocals --stepwise --strict-markers --sw --tb --verbose --version";

/// What linters, formatters and test runners share, without settings, plugins and reports.
const RUNNER: &str = "-b -g= -h -i -j= -k= -l -m= -n= -q -s -t= -u -v -w -x --bail --check --ci --color \
    --coverage --diff --exitFirst --ext --fail-fast --filter --fix --grep --help --list-different \
    --max-warnings --maxWorkers --no-color --noEmit --pretty --quiet --run --runInBand --silent \
    --strict --testNamePattern --update --verbose --version --watch --watchAll --write";

const USUAL: &str = "-h -q -v --help --no-interaction --quiet --verbose --version";

const CARGO: &str = "-A= -D= -F= -W= -e= -h -i= -j= -p= -q -r -v -vv --all --all-features --all-targets --benches \
    --bin --bins --check --color --depth --dev --doc --edges --exact --example --examples --exclude \
    --features --format-version --frozen --help --ignored --include-ignored --invert --jobs --keep-going \
    --lib --list --locked --message-format --no-capture --no-default-features --no-deps \
    --no-fail-fast --no-run --nocapture --offline --optional --package --precise --profile --quiet --release \
    --show-output --skip --target --test --test-threads --tests --verbose --version --workspace";

const DOTNET: &str =
    "-c= -f= -v= --configuration --filter --framework --no-build --no-restore --nologo --verbosity";

const GO: &str = "-a -bench -benchmem -benchtime -count -cover -covermode -coverpkg -cpu -deps -e -f -failfast \
    -fullpath -json -list -m -mod -n -p -parallel -race -run -short -shuffle -skip -t -tags -test \
    -timeout -trimpath -u -v -versions -vet -x";

const GRADLE: &str = "-S -i -q -s --console --continue --info --no-daemon --offline --parallel --quiet \
    --rerun-tasks --stacktrace --tests";

const HG: &str = "-A -G -a -b= -d= -g -k= -l= -m -n -p -q -r= -u= -v --all --git --graph --limit --patch --quiet \
    --rev --stat --verbose";

const JJ: &str = "-n= -p -r= -s --color-words --git --limit --no-graph --patch --revision --revisions --stat \
    --summary";

const MIX: &str = "--check-formatted --cover --exclude --failed --force --include --max-failures --only --seed \
    --stale --trace --warnings-as-errors";

const MVN: &str = "-B -U -X -e -o -q -am --batch-mode --errors --offline --quiet --show-version";

/// The last ones are names that scripts of a project usually have.
const NPM_COMMANDS: &str = "add, audit, ci, dedupe, i, info, install, list, ls, outdated, prune, remove, \
    run *, start, t, test, uninstall, view, why, build, check, format, lint, typecheck";

/// Those of npm and its like, and those that they hand to a test runner.
const NPM: &str = "-D -P -S -g= -h -i -q -s -t= -u -v -w= --all --bail --ci --coverage --depth --dev --filter --fix \
    --force --frozen-lockfile --grep --help --if-present --immutable --json --legacy-peer-deps --long \
    --no-audit --no-fund --no-save --offline --omit --prefer-offline --prod --production --quiet --run \
    --runInBand --save-dev --save-exact --silent --testNamePattern --verbose --version --watch \
    --watchAll --workspace --workspaces";

const PIP: &str = "-U -q -r= -v --all --dry-run --format --no-cache-dir --no-deps --outdated --pre --quiet \
    --requirement --upgrade --user --verbose";

const POETRY: &str = "-D -G= -n -q -v --all-extras --dev --dry-run --extras --group --latest --no-interaction \
    --no-root --only --outdated --quiet --sync --tree --verbose --with --without";

const TERRAFORM: &str = "-check -compact-warnings -diff -json -lock -no-color -recursive -refresh";

const UV: &str = "-U -q -v --all-extras --all-groups --dev --extra --frozen --group --locked --no-dev --optional \
    --quiet --upgrade --verbose";

const UNIQ: &str = "-D -c -d -f= -i -s= -u -w= -z --count --ignore-case --repeated --skip-chars --skip-fields \
    --unique --zero-terminated";

const CURL: &str = "-# -4 -6 -A= -G -I -L -N -S -f -g -i -m= -r= -s -v --compressed --connect-timeout --fail \
    --fail-with-body --get --head --http1.1 --http2 --include --ipv4 --ipv6 --location \
    --max-time --no-buffer --no-progress-meter --progress-bar --range --retry --show-error \
    --silent --user-agent --verbose";

/// It writes the file of the address, which is what it is for.
const WGET: &str = "-4 -6 -S -T= -U= -c -q -t= -v --continue --no-verbose --quiet --server-response --spider \
    --timeout --tries --user-agent --verbose";

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

/// How many words say what a command does, if all of its words are covered.
pub fn covered_words(program: &str, words: &[String]) -> Option<usize> {
    let mut length = None;
    for covered in COVERED {
        if !covered.programs.split(' ').any(|one| one == program) {
            continue;
        }
        let commands = covered.commands.split(',').map(str::trim);
        let Some(own) = commands.filter_map(|one| matched(one, words)).max() else { continue };
        // The row that says most about the command is the one that counts.
        if length.is_none_or(|(known, _)| known < own) {
            length = Some((own, &covered.options));
        }
    }
    let (length, options) = length?;
    let is_allowed = are_covered(program, &words[length..], options)
        && (program != "git" || is_harmless_for_git(words));
    is_allowed.then_some(length + 1)
}

/// How many words a command has, if these words begin with it.
fn matched(command: &str, words: &[String]) -> Option<usize> {
    let own: Vec<&str> = command.split(' ').filter(|word| !word.is_empty()).collect();
    let is_same = |(own, word): (&&str, &String)| *own == word || (*own == "*" && is_name(word));
    (own.len() <= words.len() && own.iter().zip(words).all(is_same)).then_some(own.len())
}

/// Whether a word is a plain name.
pub fn is_name(word: &str) -> bool {
    !word.is_empty()
        && !word.starts_with(['-', '+'])
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "._+-:".contains(c))
}

fn is_harmless_for_git(words: &[String]) -> bool {
    let takes_address = words.first().is_some_and(|word| GIT_WITH_ADDRESS.contains(&word.as_str()));
    // An address such as `ext::sh -c …` names a program.
    let names_program = takes_address && words.iter().any(|word| word.contains("::"));
    !names_program && are_covered("git", words, &AllBut(GIT_NEVER))
}

fn are_covered(program: &str, words: &[String], options: &Options) -> bool {
    let has_letters = !LONG_WITH_ONE_DASH.contains(&program);
    let names_file = |word: &String| word.starts_with('@') || word.contains("=@");
    if FILES_BEHIND_AT.contains(&program) && words.iter().any(names_file) {
        return false;
    }
    let are_known = |options: &str| words.iter().all(|word| is_known(word, options, has_letters));
    match options {
        All => true,
        AllBut(options) => !words
            .iter()
            .any(|word| options.split(' ').any(|one| is_option(word, one, has_letters))),
        Only(options) => are_known(options),
        Operands(most, options) => {
            let operands = words.iter().filter(|word| !word.starts_with('-') || *word == "-");
            are_known(options) && operands.count() <= *most
        }
    }
}

/// Whether a word is that option: alone, with its value, cut short, or among other letters.
fn is_option(word: &str, option: &str, has_letters: bool) -> bool {
    if let Some(beginning) = option.strip_suffix(',') {
        return word.starts_with(beginning);
    }
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

/// Whether a word is no option, or one of these.
fn is_known(word: &str, options: &str, has_letters: bool) -> bool {
    let mut options = options.split(' ').filter(|option| !option.is_empty());
    let Some(letters) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
        return true;
    };
    if letters == "-" {
        return true;
    }
    let name = word.split('=').next().unwrap_or(word);
    if !has_letters {
        return options
            .any(|option| option.trim_start_matches('-') == name.trim_start_matches('-'));
    }
    if letters.starts_with('-') {
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
mod tests;
