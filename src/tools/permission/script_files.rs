//! Script files of the Workspace that a command runs, so that a lasting approval covers their
//! content.
//!
//! The effect of `sh run.sh` depends on the file. A lasting approval of such a command is bound to the
//! content of the files that it runs, and is asked for again when one of them has changed. Files that
//! those files use are not followed.
//!
//! A command gets a lasting approval only if all of it is understood: a list of simple commands,
//! each of a program that is known here or in the allow-list of prefixes, with words that are known.
//! A program or an option that is not listed can be allowed only once.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use rustix::fs::FileType;
use sha2::{Digest, Sha256};

use super::options::is_one_of;
use super::shell::{PlainCommand, PlainScript, ShellScript, ShellWord};
use super::{options, read_only, text_program};
use crate::base::id::hex;
use crate::host::workspace::{Workspace, WorkspaceError};

/// How much of a file is read, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// How many words of a command are checked; `MAX_DEPTH` limits commands nested in the words of others.
const MAX_WORDS: usize = 512;
const MAX_DEPTH: usize = 4;

/// Interpreters of shell scripts.
const SHELLS: &str = "ash bash dash ksh sh zsh";

/// Other interpreters, which run their first file operand, each with the option letters that do not
/// change that.
const INTERPRETERS: &[(&str, &str)] = &[
    ("bats", ""),
    ("csh", ""),
    ("elixir", ""),
    ("fish", ""),
    ("julia", ""),
    ("lua", ""),
    ("node", ""),
    ("perl", "wWtT"),
    ("php", ""),
    ("pypy", "bBdEIOqsSuv"),
    ("python", "bBdEIOqsSuv"),
    ("Rscript", ""),
    ("ruby", "w"),
    ("tclsh", ""),
    ("ts-node", ""),
    ("tsx", ""),
];

/// Build tools, each with the names of its build files and of its settings files.
const BUILD_FILES: &[(&str, &str, &str)] = &[
    ("gmake", "GNUmakefile makefile Makefile", ""),
    (
        "gradle",
        "build.gradle build.gradle.kts",
        "gradle.properties settings.gradle settings.gradle.kts",
    ),
    ("just", "justfile Justfile .justfile", ""),
    ("make", "GNUmakefile makefile Makefile", ""),
    ("mvn", "pom.xml", ".mvn/extensions.xml .mvn/jvm.config .mvn/maven.config"),
    ("npm", "package.json", ".npmrc"),
    ("pnpm", "package.json", ".npmrc .pnpmfile.cjs pnpm-workspace.yaml"),
    ("rake", "Rakefile rakefile Rakefile.rb rakefile.rb", ""),
    ("yarn", "package.json", ".npmrc .yarnrc .yarnrc.yml"),
];

/// Shell builtins that run no program and set no variable.
const BUILTINS: &str = ": exit printf set test wait";

/// Programs that write to their operands, in addition to those of the allow-list of prefixes.
const WRITERS: &str = "dd tee";

/// Programs that change files but cannot write a given text into one.
const WITHOUT_TEXT: &str = "chmod kill mkdir rm rmdir sleep touch";

/// Variables that name neither programs nor files.
const VARIABLES: &str = "CI CLICOLOR COLUMNS DEBUG FORCE_COLOR GOARCH GOOS HOST LANG LC_ALL LINES NODE_ENV NO_COLOR PORT \
    PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED RUST_BACKTRACE RUST_LOG RUST_TEST_THREADS TERM TZ VERBOSE";

/// The files to which a lasting approval of a command is bound, in addition to its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptFiles {
    /// The files of the Workspace that the command may run, with the SHA-256 of their content.
    Known(BTreeMap<PathBuf, String>),
    /// The files are not known beforehand, so the command can be allowed only once.
    Unknown,
}

/// The files of a Workspace that a command may run.
pub fn find_script_files(command: &str, workspace: &Workspace) -> ScriptFiles {
    let mut search = ScriptSearch {
        workspace,
        folder: Some(PathBuf::new()),
        left: MAX_WORDS,
        found: BTreeMap::new(),
        writes: false,
        is_nested: false,
    };
    match search.visit_shell_text(command, 0) {
        // Another program of the same command may change a script before it starts.
        Ok(()) if search.writes && !search.found.is_empty() => ScriptFiles::Unknown,
        Ok(()) => ScriptFiles::Known(search.found),
        Err(UnknownScript) => ScriptFiles::Unknown,
    }
}

/// The error for a command that runs something that is not known beforehand.
struct UnknownScript;

struct ScriptSearch<'w> {
    workspace: &'w Workspace,
    /// The folder to which names are relative, if it is known.
    folder: Option<PathBuf>,
    /// How many words may still be checked.
    left: usize,
    found: BTreeMap<PathBuf, String>,
    /// Whether a program may write a file that a script of the same command is read from.
    writes: bool,
    /// Whether the words of a command contain a list of commands.
    is_nested: bool,
}

/// The standard input of a command.
#[derive(Clone, Copy)]
enum ScriptInput<'c> {
    File(&'c str),
    /// No input, or text that is typed later and needs a permission then.
    Typed,
    Unknown,
}

/// The position of a command in its list.
#[derive(Clone, Copy)]
struct CommandPosition<'c> {
    input: ScriptInput<'c>,
    is_last: bool,
    depth: usize,
}

impl ScriptSearch<'_> {
    fn visit_shell_text(&mut self, text: &str, depth: usize) -> Result<(), UnknownScript> {
        if text.trim().is_empty() {
            return Ok(());
        }
        let script = ShellScript::parse(text).filter(|_| depth < MAX_DEPTH).ok_or(UnknownScript)?;
        let script = script.plain_script().filter(|script| !script.has_negation);
        let PlainScript { commands, inputs, outputs, has_or, .. } = script.ok_or(UnknownScript)?;
        self.is_nested |= depth > 0;
        let input = match (commands.len(), inputs.as_slice()) {
            (1, [only]) => ScriptInput::File(only),
            (1, []) if depth == 0 => ScriptInput::Typed,
            _ => ScriptInput::Unknown,
        };
        let mut is_leading = !has_or;
        for (at, command) in commands.iter().enumerate() {
            self.left = self.left.checked_sub(command.words.len()).ok_or(UnknownScript)?;
            check_variables(&command.variables)?;
            let is_cd = command.words.first().is_some_and(|program| program.text == "cd");
            if is_cd {
                let is_sure = is_leading && !command.is_in_pipeline;
                self.folder = if is_sure { Some(self.folder_after_cd(command)?) } else { None };
                continue;
            }
            is_leading = false;
            let place = CommandPosition { input, is_last: at + 1 == commands.len(), depth };
            self.visit_command(command, place)?;
        }
        // The last command may write if it is not in a pipeline: the scripts were read by then.
        let is_alone = !self.is_nested && commands.last().is_some_and(|last| !last.is_in_pipeline);
        self.writes |= !outputs.iter().all(|before| is_alone && *before == commands.len());
        Ok(())
    }

    /// The folder after a `cd` that is certain to happen.
    fn folder_after_cd(&self, command: &PlainCommand) -> Result<PathBuf, UnknownScript> {
        match command.words.as_slice() {
            [_, only] if !only.has_pattern && !only.text.starts_with('-') => {
                self.folder_at(&only.text)
            }
            _ => Err(UnknownScript),
        }
    }

    fn folder_at(&self, name: &str) -> Result<PathBuf, UnknownScript> {
        let path = self.resolve_path(name)?;
        let stat = self.workspace.metadata(&path).map_err(|_| UnknownScript)?;
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_folder { Ok(path) } else { Err(UnknownScript) }
    }

    fn visit_command(
        &mut self,
        command: &PlainCommand,
        place: CommandPosition<'_>,
    ) -> Result<(), UnknownScript> {
        let words = &command.words;
        let (program, rest) = words.split_first().ok_or(UnknownScript)?;
        if program.has_pattern {
            return Err(UnknownScript);
        }
        // A pattern may expand to any option, which is harmless for some programs only.
        let shown = |word: &ShellWord| {
            if word.has_pattern { "--computed".to_owned() } else { word.text.clone() }
        };
        let rest_shown: Vec<String> = rest.iter().map(shown).collect();
        let name = program.text.as_str();
        let runs_package = BUILD_FILES.iter().any(|(own, ..)| *own == name);
        if !runs_package && options::covered_words(name, &rest_shown).is_some() {
            self.writes |=
                !(read_only::is_read_only_command(words) || is_one_of(name, WITHOUT_TEXT));
            return Ok(());
        }
        if rest.iter().any(|word| word.has_pattern) {
            return Err(UnknownScript);
        }
        self.visit_known_words(name, &rest_shown, place)
    }

    /// Checks a command whose words are all known.
    fn visit_known_words(
        &mut self,
        program: &str,
        words: &[String],
        place: CommandPosition<'_>,
    ) -> Result<(), UnknownScript> {
        if is_one_of(program, BUILTINS) {
            return check_builtin(program, words);
        }
        if is_one_of(program, WRITERS) {
            self.writes = true;
            return Ok(());
        }
        match program {
            "sed" => {
                self.writes |= text_program::check_sed(words).ok_or(UnknownScript)?.writes;
                return Ok(());
            }
            "awk" | "gawk" | "mawk" | "nawk" => {
                return text_program::is_plain_awk(words).then_some(()).ok_or(UnknownScript);
            }
            "." | "source" => return self.visit_sourced(words, place),
            "go" => return self.visit_go_run(words),
            "uv" if matches!(words, [run, file, ..] if run == "run" && has_ending(file, "py")) => {
                return self.bind_file(&words[1]);
            }
            _ => {}
        }
        if let Some(inner) = started_command(program, words) {
            return self.visit_started_command(inner?, place);
        }
        if let Some((_, files, settings)) = BUILD_FILES.iter().find(|(own, ..)| *own == program) {
            return self.visit_build_tool(program, words, files, settings);
        }
        let is_own = program.contains('/') && self.visit_program_path(program)?;
        let name = program.rsplit('/').next().unwrap_or(program);
        if is_one_of(name, SHELLS) {
            return self.visit_shell(words, place);
        }
        let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        match INTERPRETERS.iter().find(|(own, _)| *own == name) {
            Some((name, letters)) => self.visit_interpreter(name, letters, words, place),
            None if is_own => Ok(()),
            None => Err(UnknownScript),
        }
    }

    /// Checks a command that another one starts.
    fn visit_started_command(
        &mut self,
        words: &[String],
        place: CommandPosition<'_>,
    ) -> Result<(), UnknownScript> {
        let (program, rest) = words.split_first().ok_or(UnknownScript)?;
        let runs_package = BUILD_FILES.iter().any(|(own, ..)| own == program);
        if !runs_package && options::covered_words(program, rest).is_some() {
            self.writes = true;
            return Ok(());
        }
        // Shell builtins cannot be started by another program.
        if is_one_of(program, BUILTINS) || matches!(program.as_str(), "." | "source") {
            return Err(UnknownScript);
        }
        self.visit_known_words(program, rest, place)
    }

    /// Whether a program is a file of the Workspace. A link to a system program, as in a virtual
    /// environment, is bound to its target.
    fn visit_program_path(&mut self, program: &str) -> Result<bool, UnknownScript> {
        let is_plain = Path::new(program).components().all(|part| part != Component::ParentDir);
        if !is_plain {
            return Err(UnknownScript);
        }
        if SYSTEM_FOLDERS.iter().any(|own| program.starts_with(own)) {
            return Ok(false);
        }
        if self.bind_file(program).is_ok() {
            return Ok(true);
        }
        let path = self.resolve_path(program)?;
        let real = self.workspace.root().join(&path).canonicalize().map_err(|_| UnknownScript)?;
        let real = real.to_string_lossy().into_owned();
        if !SYSTEM_FOLDERS.iter().any(|own| real.starts_with(own)) {
            return Err(UnknownScript);
        }
        self.found.insert(path, real);
        Ok(false)
    }

    /// Checks `.` and `source`, which search `PATH` unless the name has a slash, and change the shell
    /// for all later commands.
    fn visit_sourced(
        &mut self,
        words: &[String],
        place: CommandPosition<'_>,
    ) -> Result<(), UnknownScript> {
        match words {
            [file, ..] if place.is_last && place.depth == 0 && file.contains('/') => {
                self.bind_file(file)
            }
            _ => Err(UnknownScript),
        }
    }

    fn visit_shell(
        &mut self,
        words: &[String],
        place: CommandPosition<'_>,
    ) -> Result<(), UnknownScript> {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let Some(letters) = word.strip_prefix('-') else { return self.bind_file(word) };
            if letters == "s" {
                break;
            }
            let (letters, is_text) = match letters.strip_suffix('c') {
                Some(before) => (before, true),
                None => (letters, false),
            };
            if letters.chars().any(|letter| !"euxv".contains(letter)) || word == "-" {
                return Err(UnknownScript);
            }
            if is_text {
                let folder = self.folder.clone();
                let text = words.next().ok_or(UnknownScript)?;
                self.visit_shell_text(text, place.depth + 1)?;
                self.folder = folder;
                return Ok(());
            }
        }
        self.bind_input(place.input)
    }

    /// Binds the approval to the standard input, which an interpreter without a file runs.
    fn bind_input(&mut self, input: ScriptInput<'_>) -> Result<(), UnknownScript> {
        match input {
            ScriptInput::File(name) => self.bind_file(name),
            ScriptInput::Typed => Ok(()),
            ScriptInput::Unknown => Err(UnknownScript),
        }
    }

    fn visit_interpreter(
        &mut self,
        name: &str,
        letters: &str,
        words: &[String],
        place: CommandPosition<'_>,
    ) -> Result<(), UnknownScript> {
        let is_python = matches!(name, "pypy" | "python");
        for (at, word) in words.iter().enumerate() {
            let Some(own) = word.strip_prefix('-') else {
                let inside = format!("{word}/__main__.py");
                return match self.bind_file(word) {
                    Err(UnknownScript) if is_python => self.bind_file(&inside),
                    done => done,
                };
            };
            if let Some(module) = own.strip_prefix('m').filter(|_| is_python) {
                let rest = &words[at + 1..];
                if !module.is_empty() {
                    return self.visit_module(module, rest);
                }
                let (module, rest) = rest.split_first().ok_or(UnknownScript)?;
                return self.visit_module(module, rest);
            }
            if own.is_empty() || own.chars().any(|letter| !letters.contains(letter)) {
                return Err(UnknownScript);
            }
        }
        self.bind_input(place.input)
    }

    /// Checks a Python module: one of the Workspace, or a known program.
    fn visit_module(&mut self, module: &str, words: &[String]) -> Result<(), UnknownScript> {
        if !module.chars().all(|c| c.is_ascii_alphanumeric() || "._".contains(c)) {
            return Err(UnknownScript);
        }
        let path = module.replace('.', "/");
        let mut is_found = false;
        for inside in [".py", "/__init__.py", "/__main__.py"] {
            is_found |= self.bind_file(&format!("{path}{inside}")).is_ok();
        }
        if is_found {
            // The enclosing packages run first.
            for (end, _) in path.match_indices('/') {
                self.bind_if_present(&format!("{}/__init__.py", &path[..end]))?;
            }
            return Ok(());
        }
        self.writes = true;
        options::covered_words(module, words).map(|_| ()).ok_or(UnknownScript)
    }

    /// Checks `go run` with source files.
    fn visit_go_run(&mut self, words: &[String]) -> Result<(), UnknownScript> {
        let [run, files @ ..] = words else { return Err(UnknownScript) };
        let files: Vec<&String> = files.iter().take_while(|word| has_ending(word, "go")).collect();
        if run != "run" || files.is_empty() {
            return Err(UnknownScript);
        }
        files.into_iter().try_for_each(|file| self.bind_file(file))
    }

    /// Binds the approval to the files of a build tool, which have fixed names.
    fn visit_build_tool(
        &mut self,
        program: &str,
        words: &[String],
        files: &str,
        settings: &str,
    ) -> Result<(), UnknownScript> {
        let folder = self.folder.clone();
        if matches!(program, "make" | "gmake") {
            self.visit_make_words(words)?;
        } else {
            let is_elsewhere = |word: &String| {
                let is_letter =
                    !word.starts_with("--") && word.starts_with('-') && word.contains('w');
                is_letter || word.starts_with("--workspace") || word.starts_with("--filter")
            };
            let is_known = options::covered_words(program, words).is_some();
            if !is_known || words.iter().any(is_elsewhere) {
                return Err(UnknownScript);
            }
        }
        let mut is_found = false;
        for file in files.split_ascii_whitespace() {
            is_found |= self.bind_if_present(file)?;
        }
        for file in settings.split_ascii_whitespace() {
            self.bind_if_present(file)?;
        }
        self.folder = folder;
        if is_found { Ok(()) } else { Err(UnknownScript) }
    }

    /// Checks the options of `make`: folder, file and flags.
    fn visit_make_words(&mut self, words: &[String]) -> Result<(), UnknownScript> {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let is_jobs = word.strip_prefix("-j").is_some_and(is_number);
            match word.as_str() {
                "-C" => self.folder = Some(self.folder_at(words.next().ok_or(UnknownScript)?)?),
                "-f" => self.bind_file(words.next().ok_or(UnknownScript)?)?,
                "-B" | "-k" | "-n" | "-s" | "--no-print-directory" => {}
                _ if is_jobs => {}
                target if options::is_name(target) => {}
                _ => return Err(UnknownScript),
            }
        }
        Ok(())
    }

    /// Binds the approval to a file that runs.
    fn bind_file(&mut self, name: &str) -> Result<(), UnknownScript> {
        if self.bind_if_present(name)? { Ok(()) } else { Err(UnknownScript) }
    }

    /// Binds the approval to a file if it exists; fails if it is not a regular file of the Workspace.
    fn bind_if_present(&mut self, name: &str) -> Result<bool, UnknownScript> {
        let path = self.resolve_path(name)?;
        match self.workspace.metadata(&path) {
            Err(WorkspaceError::Missing { .. }) => return Ok(false),
            Err(_) => return Err(UnknownScript),
            Ok(_) => {}
        }
        let digest = hash_file(&path, self.workspace)?;
        self.found.insert(path, digest);
        Ok(true)
    }

    /// Resolves a name to a path below the Workspace root, without `.` components.
    fn resolve_path(&self, name: &str) -> Result<PathBuf, UnknownScript> {
        let folder = self.folder.as_ref().ok_or(UnknownScript)?;
        let given = Path::new(name);
        let from_root = given.strip_prefix(self.workspace.root());
        let whole = from_root.map_or_else(|_| folder.join(given), Path::to_owned);
        let is_below =
            |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if name.is_empty() || !whole.components().all(|part| is_below(&part)) {
            return Err(UnknownScript);
        }
        Ok(whole.components().filter(|part| *part != Component::CurDir).collect())
    }
}

/// Folders of system programs.
const SYSTEM_FOLDERS: &[&str] = &["/bin/", "/nix/", "/opt/", "/sbin/", "/snap/", "/usr/"];

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn has_ending(name: &str, ending: &str) -> bool {
    Path::new(name).extension().is_some_and(|own| own == ending)
}

/// Fails on a variable that may name what another program loads.
fn check_variables(variables: &[(String, String)]) -> Result<(), UnknownScript> {
    let are_known = variables.iter().all(|(name, _)| is_one_of(name, VARIABLES));
    if are_known { Ok(()) } else { Err(UnknownScript) }
}

/// Fails on a word that is computed, such as `a[$(x)]`, and on `printf -v`, which sets a variable.
fn check_builtin(program: &str, words: &[String]) -> Result<(), UnknownScript> {
    let is_computed = |word: &String| word.contains(['[', '$', '`']);
    let sets = program == "printf" && words.first().is_some_and(|word| word.starts_with('-'));
    if sets || words.iter().any(is_computed) { Err(UnknownScript) } else { Ok(()) }
}

/// The inner command of a program that starts another one, such as `env`.
fn started_command<'w>(
    program: &str,
    words: &'w [String],
) -> Option<Result<&'w [String], UnknownScript>> {
    let inner = match (program, words) {
        ("nohup", inner) => inner,
        ("nice", [option, number, inner @ ..]) if option == "-n" && is_number(number) => inner,
        ("timeout", [time, inner @ ..])
            if is_number(time.trim_end_matches(['s', 'm', 'h', 'd'])) =>
        {
            inner
        }
        ("poetry" | "uv", [run, inner @ ..]) if run == "run" => inner,
        ("bundle", [exec, inner @ ..]) if exec == "exec" => inner,
        ("env", words) => {
            let count = words.iter().take_while(|word| word.contains('=')).count();
            let (variables, inner) = words.split_at(count);
            let split = |word: &String| {
                word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
            };
            let variables: Vec<_> = variables.iter().filter_map(split).collect();
            if check_variables(&variables).is_err() {
                return Some(Err(UnknownScript));
            }
            inner
        }
        _ => return None,
    };
    // Options of these programs are not known.
    let is_command = inner.first().is_some_and(|word| !word.starts_with('-'));
    Some(if is_command { Ok(inner) } else { Err(UnknownScript) })
}

/// The digest of a regular file.
fn hash_file(path: &Path, workspace: &Workspace) -> Result<String, UnknownScript> {
    let opened = workspace.open_file(path).map_err(|_| UnknownScript)?;
    let mut bytes = Vec::new();
    opened.file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(|_| UnknownScript)?;
    let mut hash = Sha256::new();
    hash.update(&bytes);
    if bytes.len() as u64 == MAX_FILE_BYTES {
        let stat = &opened.stat;
        hash.update(format!("{} {} {}", stat.st_size, stat.st_mtime, stat.st_mtime_nsec));
    }
    Ok(hex(&hash.finalize()))
}

#[cfg(test)]
mod tests;
