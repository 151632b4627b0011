//! Allow-list of command prefixes: known programs, and those of their options and operands that do
//! not write elsewhere, start a program, or name settings that could.
//!
//! A lasting approval of `git log …` means reading the log, not `--output=FILE`. A program, a
//! command or an option that is not listed here needs another approval. Compilers and archivers are
//! left out: too many of their options name programs.

/// A row of the allow-list: programs, their subcommands, and the covered options.
struct CoveredPrograms {
    /// Names, separated by blanks.
    programs: &'static str,
    /// Subcommands such as `log` or `stash list`, separated by commas; `*` is any name. Empty for
    /// programs without subcommands.
    commands: &'static str,
    options: CoveredOptions,
}

/// Options by name, separated by blanks. A letter with `=` takes a value.
enum CoveredOptions {
    All,
    /// Only these options; others are not known to be harmless.
    Only(&'static str),
    /// Only these options, and at most this many operands: a further one is a file that is written,
    /// or another task.
    Operands(usize, &'static str),
    /// Only these options, and every operand is another command of the row.
    Tasks(&'static str),
}

use CoveredOptions::{All, Only, Operands, Tasks};

const fn any_command(programs: &'static str, options: CoveredOptions) -> CoveredPrograms {
    CoveredPrograms { programs, commands: "", options }
}

const fn these_commands(
    programs: &'static str,
    commands: &'static str,
    options: CoveredOptions,
) -> CoveredPrograms {
    CoveredPrograms { programs, commands, options }
}

const COVERED: &[CoveredPrograms] = &[
    // Programs that are read-only with any option.
    any_command(
        "base32 base64 basename cat cksum cmp column comm cut df diff dirname du echo egrep expand expr \
         false fgrep fmt fold grep head hexdump id join jq ls md5sum nl nproc numfmt od paste pgrep ps \
         pwd readelf readlink realpath rev seq sha1sum sha224sum sha256sum sha384sum sha512sum \
         shellcheck sleep stat strings sum tac tail tr true tsort type uname unexpand uptime wc which \
         whoami",
        All,
    ),
    // Programs that change the files that are their operands, as their names say.
    any_command(
        "bunzip2 bzip2 chmod chown cp csplit gunzip gzip kill ln mkdir mktemp mv pkill rm rmdir touch \
         truncate unxz unzip xz zstd",
        All,
    ),
    any_command("date", Only(DATE)),
    any_command("fd fdfind", Only(FD)),
    any_command(
        "file",
        Only("-0 -L -N -b -h -i -k -n -r --brief --mime --mime-encoding --mime-type"),
    ),
    any_command("iconv", Only("-c -f= -l -s -t= --from-code --list --silent --to-code")),
    any_command("rg", Only(RG)),
    any_command(
        "shuf",
        Only("-e -i= -n= -r -z --echo --head-count --input-range --repeat --zero-terminated"),
    ),
    any_command("sort", Only(SORT)),
    any_command("split", Only(SPLIT)),
    any_command("tree", Only(TREE)),
    any_command("uniq", Operands(1, UNIQ)),
    any_command("xxd", Operands(1, "-a -b -c= -d -e -g= -i -l= -n= -o= -p -r -s= -u")),
    any_command("curl", Only(CURL)),
    any_command("wget", Only(WGET)),
    // Formatters and test runners.
    any_command("ctest", Only(CTEST)),
    any_command("pytest py.test", Only(PYTEST)),
    any_command(
        "clang-format gofmt goimports shfmt",
        Only("-d -e -i -l -n -s -w --dry-run --Werror"),
    ),
    any_command(
        "biome black eslint flake8 golangci-lint isort jest mocha mypy phpunit prettier pylint pyright \
         rspec rubocop ruff rustfmt stylelint tsc vitest",
        Only(RUNNER),
    ),
    these_commands("ruff biome golangci-lint", "check, format, lint, run", Only(RUNNER)),
    // Programs with subcommands.
    these_commands(
        "apt apt-get",
        "install, list, remove, search, show, update, upgrade",
        Only("-q -s -y --assume-yes --dry-run --no-install-recommends --quiet --simulate --yes"),
    ),
    these_commands("brew", "info, list, outdated, search, update, upgrade", Only(USUAL)),
    these_commands("bundle", "check, install, list, outdated, show, update", Only(USUAL)),
    these_commands(
        "cargo",
        "add, b, bench, build, c, check, clean, clippy, doc, fetch, fmt, metadata, nextest list, \
         nextest run, r, remove, run, search, t, test, tree, update, version",
        Only(CARGO),
    ),
    these_commands(
        "composer",
        "check, install, outdated, run *, show, test, update, validate",
        Only(USUAL),
    ),
    these_commands("dotnet", "build, clean, format, restore, test", Only(DOTNET)),
    these_commands(
        "gh",
        "issue list, issue status, issue view, pr checks, pr diff, pr list, pr status, pr view, \
         release list, release view, repo view, run list, run view, workflow list, workflow view",
        Only("-L= -R= -c -q= -s= --comments --json --jq --limit --log --log-failed --repo --state"),
    ),
    these_commands("git", GIT_READ_ONLY, Only(GIT_LOG)),
    these_commands("git", "grep", Only(GIT_GREP)),
    these_commands("git", "branch, tag", Only(GIT_LIST)),
    these_commands(
        "git",
        "bundle list-heads, bundle verify, stash list, worktree list",
        Only(GIT_LOG),
    ),
    these_commands("git", "remote", Operands(0, "-v --verbose")),
    these_commands("git", "remote get-url, remote show", Only("-n --all --push")),
    these_commands("git", "archive", Only("-l -v --format --list --prefix --verbose")),
    these_commands(
        "git",
        "format-patch",
        Only("-N -k -n -s --cover-letter --numbered --signoff --stdout"),
    ),
    these_commands("git", "clone, fetch, ls-remote, pull", Only(GIT_REMOTE)),
    these_commands("git", "push", Only(GIT_PUSH)),
    these_commands("git", "cherry-pick, merge, revert", Only(GIT_MERGE)),
    these_commands(
        "git",
        "add, apply, checkout, commit, init, mv, reset, restore, rm, switch",
        Only(GIT_CHANGE),
    ),
    these_commands("go", "build, fix, fmt, get, install, list, test, version, vet", Only(GO)),
    these_commands("go", "doc", Only("-all -c -cmd -short -src -u")),
    these_commands("go", "env", Only("-json -changed")),
    these_commands(
        "go",
        "mod download, mod graph, mod tidy, mod verify, mod why",
        Only("-e -json -m -v -x"),
    ),
    these_commands(
        "gradle",
        "assemble, build, check, classes, clean, dependencies, jar, projects, tasks, test",
        Tasks(GRADLE),
    ),
    these_commands("helm", "get, lint, list, search, show, status, template, version", Only(USUAL)),
    these_commands("hg", "annotate, branches, diff, heads, log, status, summary, tags", Only(HG)),
    these_commands("jj", "diff, log, show, st, status", Only(JJ)),
    these_commands("just rake", "*", Operands(0, "-n -q -v --dry-run --quiet --verbose")),
    these_commands("mix", "compile, deps.get, format, test", Only(MIX)),
    these_commands("mvn", "clean, compile, install, package, test, validate, verify", Tasks(MVN)),
    these_commands("npm pnpm yarn", NPM_COMMANDS, Only(NPM)),
    these_commands("pip pip3", "check, freeze, install, list, show", Only(PIP)),
    these_commands(
        "poetry",
        "add, build, check, install, lock, remove, show, update",
        Only(POETRY),
    ),
    these_commands("rails", "about, db:migrate, db:status, routes, stats", Operands(0, "-v")),
    these_commands("rails", "test", Only("-b -f -n= -s= -v")),
    these_commands("rustup", "check, show, update", Only(USUAL)),
    these_commands(
        "swift",
        "build, test",
        Only("-c= -v --configuration --filter --parallel --skip --verbose"),
    ),
    these_commands("terraform", "fmt, plan, show, validate, version", Only(TERRAFORM)),
    these_commands("uv", "add, lock, remove, sync, tree, version", Only(UV)),
    these_commands("zig", "build", Operands(0, "--summary")),
    these_commands("zig", "fmt, test", Only("--check")),
];

/// Programs whose long options have one dash, so that letters are not combined.
const LONG_WITH_ONE_DASH: &str = "dotnet go mvn terraform";

/// Programs for which a word with `@` does not name a file with further options or data.
const AT_SIGN_IS_NO_FILE: &str = "fd fdfind git jj npm pnpm rg yarn";

/// Commands of git that take the address of a repository.
const GIT_WITH_ADDRESS: &str = "archive clone fetch ls-remote pull push remote";

/// Read-only commands of git, which share most options. `reflog` is read-only with `show` only.
const GIT_READ_ONLY: &str = "blame, cat-file, describe, diff, diff-files, diff-index, diff-tree, log, ls-files, \
    ls-tree, merge-base, name-rev, range-diff, reflog show, rev-list, rev-parse, shortlog, show, \
    show-branch, show-ref, status, whatchanged";

const GIT_LIST: &str = "-a -l= -n= -r -v --all --color --column --contains --format --list --merged \
    --no-color --no-contains --no-merged --points-at --remotes --show-current --sort --verbose";

/// Options of remote commands, without those that name a program on the remote side, such as `-u` of
/// `clone`.
const GIT_REMOTE: &str = "-4 -6 -a -b= -f -j= -k -n -p -q -r -t -v --all --atomic --autostash --bare --branch --depth \
    --dry-run --ff --ff-only --force --heads --jobs --mirror --no-checkout --no-ff --no-rebase \
    --no-recurse-submodules --no-tags --origin --porcelain --progress --prune --quiet --rebase --refs \
    --shallow-since --single-branch --squash --symref --tags --unshallow --verbose";

const GIT_PUSH: &str = "-4 -6 -d -f -n -o= -q -u -v --all --atomic --delete --dry-run --follow-tags --force \
    --force-with-lease --mirror --porcelain --progress --prune --quiet --set-upstream --tags --verbose";

/// Options of merging commands, without strategies, which are programs.
const GIT_MERGE: &str = "-X= -e -m= -n -q -v -x --abort --allow-unrelated-histories --continue --edit --ff \
    --ff-only --mainline --message --no-commit --no-edit --no-ff --quiet --quit --signoff --skip --squash \
    --stat --strategy-option --verbose";

const GIT_CHANGE: &str = "-3 -A -B= -C= -F= -N -R -S -W -a -b= -c= -d -f -k -m= -n -o -p= -q -r -s= -u -v --3way --all \
    --allow-empty --amend --author --bare --branch --cached --check --create --date --detach --dry-run --file \
    --fixup --force --force-create --hard --ignore-unmatch --ignore-whitespace --index --initial-branch \
    --intent-to-add --keep --message --mixed --no-edit --no-track --numstat --only --orphan --ours --quiet \
    --recount --reject --reset-author --reuse-message --reverse --signoff --soft --source --squash --staged \
    --stat --summary --theirs --track --update --verbose --whitespace --worktree";

const DATE: &str =
    "-I= -R -d= -r= -u --date --iso-8601 --reference --rfc-3339 --rfc-email --universal --utc";

const FD: &str = "-0 -1 -E= -F -H -I -L -S= -a -c= -d= -e= -g -i -j= -p -q -s -t= -u --absolute-path --and \
    --case-sensitive --changed-before --changed-within --color --exclude --extension --fixed-strings --follow \
    --full-path --glob --hidden --ignore-case --max-depth --max-results --min-depth --no-ignore --print0 \
    --quiet --size --type --unrestricted";

const RG: &str = "-. -0 -A= -B= -C= -E= -F -H -I -L -M= -N -P -S -T= -U -a -b -c -d= -e= -f= -g= -h -i -j= -l -m= -n \
    -o -p -q -r= -s -t= -u -v -w -x --after-context --before-context --case-sensitive --color --colors \
    --column --context --count --count-matches --crlf --debug --encoding --files --files-with-matches \
    --files-without-match --fixed-strings --follow --glob --heading --hidden --iglob --ignore-case \
    --invert-match --json --line-number --line-regexp --max-columns --max-count --max-depth --max-filesize \
    --multiline --multiline-dotall --no-filename --no-heading --no-ignore --no-ignore-vcs --no-line-number \
    --no-messages --null --only-matching --passthru --pcre2 --pretty --quiet --regexp --replace --smart-case \
    --sort --sortr --stats --text --threads --trim --type --type-list --type-not --unrestricted --version \
    --vimgrep --with-filename --word-regexp";

const SORT: &str = "-C -M -R -S= -V -b -c -d -f -g -h -i -k= -m -n -r -s -t= -u -z --check --field-separator \
    --general-numeric-sort --human-numeric-sort --ignore-case --key --merge --numeric-sort --parallel \
    --random-sort --reverse --stable --unique --version-sort --zero-terminated";

const SPLIT: &str = "-C= -a= -b= -d -e -l= -n= -x --additional-suffix --bytes --line-bytes --lines --number \
    --numeric-suffixes --suffix-length --verbose";

const TREE: &str = "-A -C -D -F -I= -L= -P= -S -a -d -f -g -h -i -l -n -p -q -r -s -t -u -x --dirsfirst --du \
    --filelimit --gitignore --ignore-case --noreport --prune";

const CTEST: &str = "-E= -L= -N -Q -R= -V -j= --output-on-failure --parallel --progress --rerun-failed \
    --stop-on-failure --timeout --verbose";

/// Options of pytest, without those that name plugins, settings and files: `-p`, `-c`, `-o`,
/// `--rootdir`.
const PYTEST: &str = "-h -k= -l -m= -n= -q -r= -s -v -x --co --collect-only --color --disable-warnings \
    --durations --exitfirst --failed-first --ff --full-trace --last-failed --lf --markers --maxfail \
    --new-first --nf --no-header --no-summary --numprocesses --quiet --runxfail --setup-show \
    --show-capture --showlocals --stepwise --strict-markers --sw --tb --verbose --version";

/// Options that linters, formatters and test runners share, without settings, plugins and reports.
const RUNNER: &str = "-b -g= -h -i -j= -k= -l -m= -q -s -t= -u -v -w -x --bail --check --ci --color \
    --coverage --diff --exitFirst --ext --fail-fast --filter --fix --grep --help --list-different \
    --max-warnings --maxWorkers --no-color --noEmit --pretty --quiet --run --runInBand --silent \
    --strict --testNamePattern --update --verbose --version --watch --watchAll --write";

const USUAL: &str = "-h -q -v --help --no-interaction --quiet --verbose --version";

const CARGO: &str = "-A= -D= -F= -W= -e= -h -i= -j= -p= -q -r -v -vv --all --all-features --all-targets --benches \
    --bin --bins --check --color --depth --dev --doc --edges --exact --example --examples --exclude \
    --features --format-version --frozen --help --ignored --include-ignored --invert --jobs --keep-going \
    --lib --list --locked --message-format --no-capture --no-default-features --no-deps \
    --no-fail-fast --no-run --nocapture --offline --optional --package --precise --profile --quiet --release \
    --show-output --skip --test --test-threads --tests --verbose --version --workspace";

const DOTNET: &str =
    "-c -f -v --configuration --filter --framework --no-build --no-restore --nologo --verbosity";

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

/// Commands of npm, pnpm and yarn; the last ones are usual names of project scripts.
const NPM_COMMANDS: &str = "add, audit, ci, dedupe, i, info, install, list, ls, outdated, prune, remove, \
    run *, start, t, test, uninstall, view, why, build, check, format, lint, typecheck";

/// Options of npm, pnpm and yarn, and those that they pass to a test runner.
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

/// Options of wget, which writes the file of the address: that is its purpose.
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

/// How many words, the program included, name the covered command; `None` if a word is not covered.
pub fn covered_words(program: &str, words: &[String]) -> Option<usize> {
    let mut length: Option<(usize, &str, &CoveredOptions)> = None;
    for covered in COVERED {
        if !is_one_of(program, covered.programs) {
            continue;
        }
        let commands = covered.commands.split(',').map(str::trim);
        let Some(own) = commands.filter_map(|one| matched_words(one, words)).max() else {
            continue;
        };
        // The most specific row counts.
        if length.is_none_or(|(known, ..)| known < own) {
            length = Some((own, covered.commands, &covered.options));
        }
    }
    let (length, commands, options) = length?;
    let is_allowed = are_covered(program, &words[length..], commands, options)
        && (program != "git" || !names_program(words));
    is_allowed.then_some(length + 1)
}

/// How many words a command has, if these words begin with it.
fn matched_words(command: &str, words: &[String]) -> Option<usize> {
    let own: Vec<&str> = command.split(' ').filter(|word| !word.is_empty()).collect();
    let is_same = |(own, word): (&&str, &String)| *own == word || (*own == "*" && is_name(word));
    (own.len() <= words.len() && own.iter().zip(words).all(is_same)).then_some(own.len())
}

/// Whether a name is in a list of names, separated by blanks.
pub fn is_one_of(name: &str, names: &str) -> bool {
    names.split_ascii_whitespace().any(|one| one == name)
}

/// Whether a word is a plain name.
pub fn is_name(word: &str) -> bool {
    !word.is_empty()
        && !word.starts_with(['-', '+'])
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "._+-:".contains(c))
}

/// Whether an address for git names a program, such as `ext::sh -c …`.
fn names_program(words: &[String]) -> bool {
    let takes_address = words.first().is_some_and(|word| is_one_of(word, GIT_WITH_ADDRESS));
    takes_address && words.iter().any(|word| word.contains("::"))
}

fn are_covered(program: &str, words: &[String], commands: &str, options: &CoveredOptions) -> bool {
    let has_letters = !is_one_of(program, LONG_WITH_ONE_DASH);
    let are_known = |options: &str| {
        // For `dotnet`, `/name` is an option, and options after `--` are for the test host.
        let is_switch =
            |word: &String| program == "dotnet" && (word.starts_with('/') || word == "--");
        let names_file = |word: &String| word.starts_with('@') || word.contains("=@");
        let takes_files = !is_one_of(program, AT_SIGN_IS_NO_FILE);
        words.iter().all(|word| {
            is_known(word, options, has_letters)
                && !is_switch(word)
                && !(takes_files && names_file(word))
        })
    };
    let mut operands = words.iter().filter(|word| !word.starts_with('-') || *word == "-");
    match options {
        All => true,
        Only(options) => are_known(options),
        Operands(most, options) => are_known(options) && operands.count() <= *most,
        Tasks(options) => {
            let is_task = |word: &String| commands.split(',').any(|one| one.trim() == word);
            are_known(options) && operands.all(is_task)
        }
    }
}

/// Whether a word is an operand, or one of these options.
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
            // The rest of the word is the option's value.
            Some(option) if option.ends_with('=') => return true,
            Some(_) => {}
        }
    }
    true
}

#[cfg(test)]
mod tests;
