//! Scripts: files of the Workspace that a command runs, so that a grant covers what they say.
//!
//! `sh run.sh` says nothing about what happens; the file does. A lasting grant for such a command is
//! bound to the content of the files that it names, and asked about again when one of them changed.
//! What those files use in turn is not followed.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use rustix::fs::FileType;
use sha2::{Digest, Sha256};

use super::approval::hex;
use super::options;
use super::shell::{Invocation, Script};
use crate::workspace::{Workspace, WorkspaceError};

/// The most of a file that is read.
const LARGEST: u64 = 16 << 20;

/// How many folders are tried for a relative name, how many words of a command are looked at, and
/// how deep commands stand in the words of others.
const MOST_FOLDERS: usize = 16;
const MOST_WORDS: usize = 512;
const DEEPEST: usize = 4;

/// Programs that run the file they are given, or what they read.
const INTERPRETERS: &str = "csh elixir expect fish groovy ipython java julia lua nextflow node nodejs nodemon nu \
    osascript perl php pwsh pypy python pythonw r racket rscript ruby runghc scala swift tclsh \
    ts-node tsx";

/// Interpreters of the language of commands.
const SHELLS: &str = ". ash bash dash ksh sh source zsh";

/// Programs that run a command which one of their words holds.
const WITH_SHELL_TEXT: &str =
    "entr env eval flock hyperfine nix-shell parallel script ssh su trap watch xargs";

/// What a shell does itself, and programs that work on files and run none of them.
const WORK_ON_FILES: &str = ": [ builtin cd dd exit export hash jobs kill local popd printf pushd read return set \
    shift shopt tar tee test ulimit umask unset wait";

/// Programs that run the file behind `-f`; the others are what they work on.
const WITH_A_FILE: &str = "awk gawk mawk nawk sed";

/// Programs that run what a file of a fixed name says.
const BUILD_FILES: &[(&str, &[&str])] = &[
    ("bun", &["package.json"]),
    ("deno", &["deno.json", "deno.jsonc", "package.json"]),
    ("gmake", &["GNUmakefile", "makefile", "Makefile"]),
    ("gradle", &["build.gradle", "build.gradle.kts", "settings.gradle"]),
    ("just", &["justfile", "Justfile", ".justfile"]),
    ("make", &["GNUmakefile", "makefile", "Makefile"]),
    ("mvn", &["pom.xml"]),
    ("ninja", &["build.ninja"]),
    ("npm", &["package.json"]),
    ("pnpm", &["package.json"]),
    ("rake", &["Rakefile", "rakefile", "Rakefile.rb"]),
    ("task", &["Taskfile.yml", "Taskfile.yaml"]),
    ("tox", &["tox.ini"]),
    ("yarn", &["package.json"]),
];

/// Options and commands behind which a folder stands in which the rest runs.
const TO_FOLDER: &[&str] =
    &["cd", "pushd", "-C", "--prefix", "--cwd", "--dir", "--directory", "--chdir"];

/// What a lasting grant for a command is bound to, besides its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scripts {
    /// The files of the Workspace that it may run, with the SHA-256 of their content.
    Known(BTreeMap<PathBuf, String>),
    /// What it runs is not known beforehand, so that it can be allowed once only.
    Unknown,
}

/// The files of a Workspace that a command may run.
///
/// Programs that are known to work on their files, as in the table of prefixes, are bound to none.
/// Every other one is bound to all files that its words name.
pub fn scripts(command: &str, workspace: &Workspace) -> Scripts {
    let folders = vec![PathBuf::new()];
    let mut search = Search { workspace, folders, left: MOST_WORDS, found: BTreeMap::new() };
    match search.shell_text(command, 0) {
        Ok(()) => Scripts::Known(search.found),
        Err(Unbound) => Scripts::Unknown,
    }
}

/// A command runs something that is not known beforehand.
struct Unbound;

struct Search<'w> {
    workspace: &'w Workspace,
    /// Where relative names may begin.
    folders: Vec<PathBuf>,
    /// How many words may still be looked at.
    left: usize,
    found: BTreeMap<PathBuf, String>,
}

/// What a word names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    File,
    Nothing,
    /// A pipe, a device, or a link that leaves the Workspace.
    Other,
}

/// What a command reads.
#[derive(Default)]
struct Inputs {
    files: Vec<Option<String>>,
    texts: Vec<Option<String>>,
}

impl Search<'_> {
    fn shell_text(&mut self, text: &str, depth: usize) -> Result<(), Unbound> {
        if text.trim().is_empty() {
            return Ok(());
        }
        let script = Script::parse(text).filter(|_| depth < DEEPEST).ok_or(Unbound)?;
        let invocations = script.invocations().ok_or(Unbound)?;
        let mut inputs = Inputs::default();
        for one in &invocations {
            match one {
                Invocation::InputFile(file) => inputs.files.push(file.clone()),
                Invocation::InputText(text) => inputs.texts.push(text.clone()),
                Invocation::Command { .. } | Invocation::Assignment { .. } => {}
            }
        }
        for one in invocations {
            match one {
                Invocation::Command { words, is_fed_by_pipe } => {
                    self.left = self.left.checked_sub(words.len()).ok_or(Unbound)?;
                    let command = Command { words: &words, is_fed_by_pipe, inputs: &inputs, depth };
                    self.command(&command)?;
                }
                Invocation::Assignment { name, value } => self.assignment(&name, value)?,
                Invocation::InputFile(_) | Invocation::InputText(_) => {}
            }
        }
        Ok(())
    }

    /// A variable may name what another program loads.
    fn assignment(&mut self, name: &str, value: Option<String>) -> Result<(), Unbound> {
        if name == "PATH" || name.starts_with("LD_") {
            return Err(Unbound);
        }
        value.map_or(Ok(()), |value| self.note_all(&value))
    }

    fn command(&mut self, command: &Command<'_>) -> Result<(), Unbound> {
        let Some((program, rest)) = command.words.split_first() else { return Ok(()) };
        let program = program.as_deref().ok_or(Unbound)?;
        self.enter_folders(command.words)?;
        let is_path = program.contains('/') && !SYSTEM.iter().any(|own| program.starts_with(own));
        if is_path && self.program_by_path(program)? {
            return Ok(());
        }
        let name = program_name(program);
        if is_one_of(&name, WORK_ON_FILES) || is_covered(&name, rest) {
            return Ok(());
        }
        for file in &command.inputs.files {
            self.must_be_file(file.as_deref().ok_or(Unbound)?)?;
        }
        if is_one_of(&name, WITH_A_FILE) {
            return self.file_options(rest);
        }
        if is_one_of(&name, WITH_SHELL_TEXT) {
            for text in rest.iter().flatten().filter(|word| word.contains(char::is_whitespace)) {
                self.shell_text(text, command.depth + 1)?;
            }
        }
        // The program itself may be one that starts another.
        for (at, word) in command.words.iter().enumerate() {
            let name = word.as_deref().map(program_name).unwrap_or_default();
            // Elsewhere they are a folder and a name.
            let is_builtin = matches!(name.as_str(), "." | "source");
            let is_shell = is_one_of(&name, SHELLS) && (at == 0 || !is_builtin);
            if is_shell || is_one_of(&name, INTERPRETERS) {
                return self.interpreted(&name, is_shell, &command.words[at + 1..], command);
            }
        }
        self.build_files(command.words);
        for word in rest {
            self.note_all(word.as_deref().ok_or(Unbound)?)?;
        }
        Ok(())
    }

    /// The folders that a command enters before it goes on.
    fn enter_folders(&mut self, words: &[Option<String>]) -> Result<(), Unbound> {
        let is_to_folder =
            |word: &Option<String>| word.as_deref().is_some_and(|word| TO_FOLDER.contains(&word));
        for two in words.windows(2).filter(|two| is_to_folder(&two[0])) {
            let is_cd = matches!(two[0].as_deref(), Some("cd" | "pushd"));
            let folder = two[1].as_deref().ok_or(Unbound)?;
            let mut entered: Vec<PathBuf> =
                self.folders.iter().map(|from| from.join(folder)).collect();
            entered.retain(|folder| self.is_folder(folder));
            // Beyond the Workspace, names mean other files.
            if is_cd && entered.is_empty() {
                return Err(Unbound);
            }
            self.folders.extend(entered);
            self.folders.truncate(MOST_FOLDERS);
        }
        Ok(())
    }

    /// Whether a program is a file of the Workspace; a link to one of the system is bound to where
    /// it leads, as those of a virtual environment.
    fn program_by_path(&mut self, program: &str) -> Result<bool, Unbound> {
        match self.note(program) {
            Named::File => return Ok(true),
            Named::Nothing => return Err(Unbound),
            Named::Other => {}
        }
        for folder in &self.folders {
            let path = folder.join(program);
            let Ok(real) = self.workspace.root().join(&path).canonicalize() else { continue };
            let real = real.to_string_lossy().into_owned();
            if !SYSTEM.iter().any(|own| real.starts_with(own)) {
                return Err(Unbound);
            }
            self.found.insert(path, real);
        }
        Ok(false)
    }

    /// The files of programs whose own language can run others, which stand behind `-f`.
    fn file_options(&mut self, words: &[Option<String>]) -> Result<(), Unbound> {
        let mut before = "";
        for word in words {
            let word = word.as_deref().ok_or(Unbound)?;
            if word.starts_with('-') || before.starts_with('-') {
                self.note_all(word)?;
            }
            before = word;
        }
        Ok(())
    }

    /// What a build tool runs stands in a file of a fixed name.
    fn build_files(&mut self, words: &[Option<String>]) {
        for word in words.iter().flatten() {
            let name = program_name(word);
            for (_, files) in BUILD_FILES.iter().filter(|(program, _)| *program == name) {
                for file in *files {
                    self.note(file);
                }
            }
        }
    }

    /// The files that an interpreter is given: those of options, and the first that is none.
    fn interpreted(
        &mut self,
        name: &str,
        is_shell: bool,
        words: &[Option<String>],
        command: &Command<'_>,
    ) -> Result<(), Unbound> {
        let mut before = "";
        let mut is_given = false;
        for (at, word) in words.iter().enumerate() {
            let word = word.as_deref().ok_or(Unbound)?;
            if word == "-" || (is_shell && word == "-s") {
                break;
            }
            if is_code_option(word, name, is_shell) {
                let code = words.get(at + 1).map(|code| code.as_deref().ok_or(Unbound));
                let code = code.transpose()?.unwrap_or_default();
                return if is_shell { self.shell_text(code, command.depth + 1) } else { Ok(()) };
            }
            if before == "-m" {
                let module = word.replace('.', "/");
                for inside in [".py", "/__init__.py", "/__main__.py"] {
                    self.note(&format!("{module}{inside}"));
                }
                return Ok(());
            }
            if word.starts_with('-') {
                self.note_all(word)?;
                before = word;
                continue;
            }
            is_given = true;
            if self.note_with_inside(word) {
                if !before.starts_with('-') {
                    return Ok(());
                }
            } else if !before.starts_with('-') {
                return Err(Unbound);
            }
            before = word;
        }
        // What is left is a value of an option, or nothing at all.
        if is_given && self.found.is_empty() {
            return Err(Unbound);
        }
        self.read_by_interpreter(is_shell, is_given, words.is_empty(), command)
    }

    /// An interpreter without a file runs what it reads.
    fn read_by_interpreter(
        &mut self,
        is_shell: bool,
        is_given: bool,
        is_bare: bool,
        command: &Command<'_>,
    ) -> Result<(), Unbound> {
        let is_first = command.words.len() == 1;
        if !is_given && (command.is_fed_by_pipe || (is_bare && !is_first)) {
            return Err(Unbound);
        }
        for text in &command.inputs.texts {
            let text = text.as_deref().ok_or(Unbound)?;
            if is_shell {
                self.shell_text(text, command.depth + 1)?;
            }
        }
        Ok(())
    }

    /// Notes a file, or the one that runs when a folder is given.
    fn note_with_inside(&mut self, word: &str) -> bool {
        let inside = ["__main__.py", "index.js", "package.json"];
        let names = inside.map(|inside| format!("{word}/{inside}"));
        let is_inside =
            names.iter().fold(false, |is_found, name| is_found | (self.note(name) == Named::File));
        self.note(word) == Named::File || is_inside
    }

    fn must_be_file(&mut self, name: &str) -> Result<(), Unbound> {
        if name == "/dev/null" || self.note(name) == Named::File { Ok(()) } else { Err(Unbound) }
    }

    /// Notes every file that a word names: as a whole, behind `=`, behind the letter of an option,
    /// or among other words in it.
    fn note_all(&mut self, word: &str) -> Result<(), Unbound> {
        let value = word.split_once('=').map(|(_, value)| value);
        let glued = word.strip_prefix('-').and_then(|rest| rest.get(1..));
        let is_parting = |c: char| c.is_whitespace() || "'\"\\=$,:;|&@".contains(c);
        let parts = word.split(is_parting);
        for name in [Some(word), value, glued].into_iter().flatten().chain(parts) {
            if self.note(name) == Named::Other {
                return Err(Unbound);
            }
        }
        Ok(())
    }

    /// Notes a file of the Workspace, if the name is one.
    fn note(&mut self, name: &str) -> Named {
        let mut named = Named::Nothing;
        if name.is_empty() {
            return named;
        }
        for folder in &self.folders {
            let path = folder.join(name);
            match digest(&path, self.workspace) {
                Ok(digest) => {
                    self.found.insert(path, digest);
                    named = Named::File;
                }
                Err(Named::Other) if named == Named::Nothing => named = Named::Other,
                Err(_) => {}
            }
        }
        named
    }

    fn is_folder(&self, path: &Path) -> bool {
        let stat = self.workspace.metadata(path);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }
}

/// A command of a script, and what it may read.
struct Command<'c> {
    words: &'c [Option<String>],
    is_fed_by_pipe: bool,
    inputs: &'c Inputs,
    depth: usize,
}

/// Where programs of the system are.
const SYSTEM: &[&str] = &["/bin/", "/nix/", "/opt/", "/sbin/", "/snap/", "/usr/"];

fn is_one_of(name: &str, names: &str) -> bool {
    !name.is_empty() && names.split_ascii_whitespace().any(|one| one == name)
}

/// Whether the words of a program say that it runs none of its files. One that is computed may be
/// any option.
fn is_covered(program: &str, words: &[Option<String>]) -> bool {
    let unknown = || "--computed".to_owned();
    let words: Vec<String> =
        words.iter().map(|word| word.clone().unwrap_or_else(unknown)).collect();
    let runs_package = BUILD_FILES.iter().any(|(name, _)| *name == program);
    !runs_package && options::covered_words(program, &words).is_some()
}

/// Whether an option says that the next word is code.
fn is_code_option(word: &str, name: &str, is_shell: bool) -> bool {
    let letters = match name {
        _ if is_shell => "c",
        "php" => "r",
        "ipython" | "pwsh" | "pypy" | "python" | "pythonw" | "fish" | "csh" | "expect" | "nu" => {
            "c"
        }
        "node" | "nodejs" => "ep",
        _ => "eE",
    };
    let Some(rest) = word.strip_prefix('-') else { return false };
    if let Some(long) = rest.strip_prefix('-') {
        return matches!(long, "eval" | "print" | "command" | "commands");
    }
    let is_cluster = rest.len() < 6 && rest.chars().all(|c| c.is_ascii_alphabetic());
    is_cluster && rest.ends_with(|c| letters.contains(c))
}

/// The name of a program without its folder and version.
fn program_name(word: &str) -> String {
    let name = word.rsplit('/').next().unwrap_or(word).to_lowercase();
    if name == "." {
        return name;
    }
    name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-').to_owned()
}

/// The digest of a file, or what else the name leads to.
fn digest(path: &Path, workspace: &Workspace) -> Result<String, Named> {
    let stays = path.is_relative() && path.components().all(|part| part != Component::ParentDir);
    let opened = workspace.open_file(path).map_err(|error| match error {
        WorkspaceError::NotRegular { what: "a folder", .. } => Named::Nothing,
        WorkspaceError::NotRegular { .. } => Named::Other,
        // A link that leads away; a path that plainly does is the business of its program.
        WorkspaceError::Outside { .. } if stays => Named::Other,
        _ => Named::Nothing,
    })?;
    let mut bytes = Vec::new();
    opened.file.take(LARGEST).read_to_end(&mut bytes).map_err(|_| Named::Other)?;
    let mut hash = Sha256::new();
    hash.update(&bytes);
    if bytes.len() as u64 == LARGEST {
        let stat = &opened.stat;
        hash.update(format!("{} {} {}", stat.st_size, stat.st_mtime, stat.st_mtime_nsec));
    }
    Ok(hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(command: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("tools/pkg")).unwrap();
        for name in [
            "run.sh",
            "a.py",
            "data",
            "Makefile",
            "package.json",
            "tools/x.js",
            "tools/pkg/__main__.py",
        ] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let workspace = Workspace::open(folder.path()).unwrap();
        let Scripts::Known(scripts) = scripts(command, &workspace) else {
            return vec!["unknown".to_owned()];
        };
        scripts.into_keys().map(|path| path.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_files_that_a_command_runs_are_found() {
        let mut wrong = Vec::new();
        for (command, expected) in [
            ("sh run.sh", &["run.sh"][..]),
            ("./run.sh data", &["./run.sh"]),
            ("/bin/sh -e run.sh", &["run.sh"]),
            ("python3.12 a.py data", &["a.py"]),
            ("python3 <a.py", &["a.py"]),
            ("cat a.py | python3", &["unknown"]),
            ("env X=1 timeout 5 python3 -u a.py", &["a.py"]),
            ("bash -c 'python3 a.py'", &["a.py"]),
            ("bash -c \"cd tools; node x.js\"", &["tools/x.js"]),
            ("cd tools && node --require ./x.js missing.js", &["unknown"]),
            ("cd tools && node --require ./x.js x.js", &["tools/./x.js"]),
            ("node tools/x.js > data", &["tools/x.js"]),
            ("python3 -m tools.pkg", &["tools/pkg/__main__.py"]),
            ("python3 tools/pkg", &["tools/pkg/__main__.py"]),
            (". run.sh", &["run.sh"]),
            ("make -f data test", &["Makefile", "data"]),
            ("npm run build", &["package.json"]),
            ("awk -f a.py data", &["a.py"]),
            ("sed -i s/a/b/ data", &[]),
            ("cp data copy", &[]),
            ("cat run.sh", &[]),
            ("python3 -c 'print(1)'", &[]),
            ("python3 /etc/passwd ../x", &["unknown"]),
            ("python3 - <<'EOF'\nprint(1)\nEOF", &[]),
            ("bash <<'EOF'\nsh run.sh\nEOF", &["run.sh"]),
            ("bash <<< 'sh run.sh'", &["run.sh"]),
            ("bash <<< \"$X\"", &["unknown"]),
            ("python3 -c \"$(cat a.py)\"", &["unknown"]),
            ("eval 'sh run.sh'", &["run.sh"]),
            ("eval \"$X\"", &["unknown"]),
            ("find . -name x -exec sh {} +", &["unknown"]),
            ("ls | xargs sh", &["unknown"]),
            ("xargs sh run.sh", &["run.sh"]),
            ("for f in *.sh; do sh \"$f\"; done", &["unknown"]),
            ("f() { sh \"$1\"; }; f run.sh", &["unknown"]),
            ("cd / && sh run.sh", &["unknown"]),
            ("PATH=$PWD:$PATH run.sh", &["unknown"]),
            ("export PATH=.; run.sh", &["unknown"]),
            ("LD_PRELOAD=./data ls", &["unknown"]),
            ("BASH_ENV=run.sh bash -c true", &["run.sh"]),
            ("NODE_OPTIONS='--require ./tools/x.js' node -e 1", &["./tools/x.js"]),
            ("unheard-of --file=run.sh -xdata", &["data", "run.sh"]),
            ("unheard-of $X", &["unknown"]),
            ("vim -S a.py data", &["a.py", "data"]),
            ("bun test", &["package.json"]),
            ("git -c core.pager=./run.sh log", &["./run.sh"]),
            ("git bisect run sh run.sh", &["run.sh"]),
            ("git log data", &[]),
            ("cargo test $X", &["unknown"]),
            ("cat $X data | grep -n \"$Y\" > copy", &[]),
            ("[ -f data ] && rm data", &[]),
            ("pytest -q data", &[]),
            ("pytest -p a", &[]),
            ("sh run.sh; sh missing", &["unknown"]),
            ("python3 --version", &[]),
            ("perl -i -pe s/a/b/ data", &[]),
            ("/tmp/x data", &["unknown"]),
            ("~/x data", &["unknown"]),
        ] {
            let found = found(command);
            if found != expected {
                wrong.push(format!("{command}: {found:?}"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
