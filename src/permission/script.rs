//! Scripts: files of the Workspace that a command runs, so that a grant covers what they say.
//!
//! `sh run.sh` says nothing about what happens; the file does. A lasting grant for such a command is
//! bound to the content of the files that it names, and asked about again when one of them changed.
//! What those files use in turn is not followed.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use sha2::{Digest, Sha256};

use super::approval::hex;
use crate::workspace::Workspace;

/// The most of a file that is read.
const LARGEST: u64 = 16 << 20;

/// How many folders are tried for a relative name, and how many words of a command are looked at.
const MOST_FOLDERS: usize = 16;
const MOST_WORDS: usize = 512;

/// Programs that run the file they are given.
const INTERPRETERS: &str = ". ash bash bun csh dash deno elixir expect fish groovy ipython java julia ksh lua nextflow \
    node nodejs nodemon osascript perl php pwsh pypy python pythonw r racket rscript ruby \
    runghc scala sh source swift tclsh ts-node tsx zsh";

/// Programs that run the file behind `-f`; the others are what they work on.
const WITH_A_FILE: &[&str] = &["awk", "gawk", "mawk", "sed"];

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

/// The files of a Workspace that a command plainly runs, with the SHA-256 of their content.
pub fn scripts(command: &str, workspace: &Workspace) -> BTreeMap<PathBuf, String> {
    let mut search = Search { workspace, folders: vec![PathBuf::new()], found: BTreeMap::new() };
    let mut left = MOST_WORDS;
    for segment in command.split([';', '|', '&', '\n', '(', ')', '{', '}', '`']) {
        let words = words(segment);
        let words = &words[..words.len().min(left)];
        left -= words.len();
        search.segment(words);
    }
    search.found
}

/// The words of one command of a shell text, however they are quoted, without the targets of
/// redirections. Too many are better than too few: they only have to name files.
fn words(segment: &str) -> Vec<&str> {
    let is_parting = |c: char| c.is_whitespace() || "'\"\\=$,".contains(c);
    let mut words = Vec::new();
    for (nth, part) in segment.split('>').enumerate() {
        let mut own = part.split(is_parting).filter(|word| !word.is_empty());
        if nth > 0 {
            own.next();
        }
        words.extend(own.map(|word| word.trim_start_matches('<')).filter(|word| !word.is_empty()));
    }
    words
}

struct Search<'w> {
    workspace: &'w Workspace,
    /// Where relative names may begin.
    folders: Vec<PathBuf>,
    found: BTreeMap<PathBuf, String>,
}

impl Search<'_> {
    fn segment(&mut self, words: &[&str]) {
        for two in words.windows(2).filter(|two| TO_FOLDER.contains(&two[0])) {
            let mut entered: Vec<PathBuf> =
                self.folders.iter().map(|from| from.join(two[1])).collect();
            entered.retain(|folder| self.is_folder(folder));
            self.folders.extend(entered);
            self.folders.truncate(MOST_FOLDERS);
        }
        for (at, word) in words.iter().enumerate() {
            let name = program_name(word);
            if INTERPRETERS.split(' ').any(|interpreter| interpreter == name) {
                self.interpreted(&words[at + 1..]);
            }
            if WITH_A_FILE.contains(&name.as_str()) {
                for two in words.windows(2).filter(|two| matches!(two[0], "-f" | "--file")) {
                    self.note(two[1]);
                }
            }
            for (_, files) in BUILD_FILES.iter().filter(|(program, _)| *program == name) {
                for file in files.iter().chain(&words[at + 1..]) {
                    self.note(file);
                }
            }
            if word.contains('/') && (at == 0 || self.is_executable(word)) {
                self.note(word);
            }
        }
    }

    /// The files that an interpreter is given: those of options, and the first that is none.
    fn interpreted(&mut self, words: &[&str]) {
        let mut before = "";
        for word in words {
            if before == "-m" {
                let module = word.replace('.', "/");
                self.note(&format!("{module}.py"));
                self.note(&format!("{module}/__main__.py"));
            }
            let count = self.found.len();
            self.note(word);
            for inside in ["__main__.py", "index.js", "package.json"] {
                self.note(&format!("{word}/{inside}"));
            }
            if self.found.len() > count && !before.starts_with('-') {
                return;
            }
            before = word;
        }
    }

    /// Notes a file of the Workspace, if the name is one.
    fn note(&mut self, name: &str) {
        for folder in &self.folders {
            let path = folder.join(name);
            if let Some(digest) = digest(&path, self.workspace) {
                self.found.insert(path, digest);
            }
        }
    }

    fn is_folder(&self, path: &Path) -> bool {
        let stat = self.workspace.metadata(path);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    fn is_executable(&self, name: &str) -> bool {
        self.folders.iter().any(|folder| {
            let stat = self.workspace.metadata(&folder.join(name));
            stat.is_ok_and(|stat| stat.st_mode & 0o111 != 0)
        })
    }
}

/// The name of a program without its folder and version.
fn program_name(word: &str) -> String {
    let name = word.rsplit('/').next().unwrap_or(word).to_lowercase();
    if name == "." {
        return name;
    }
    name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-').to_owned()
}

fn digest(path: &Path, workspace: &Workspace) -> Option<String> {
    let opened = workspace.open_file(path).ok()?;
    let mut bytes = Vec::new();
    opened.file.take(LARGEST).read_to_end(&mut bytes).ok()?;
    let mut hash = Sha256::new();
    hash.update(&bytes);
    if bytes.len() as u64 == LARGEST {
        let stat = &opened.stat;
        hash.update(format!("{} {} {}", stat.st_size, stat.st_mtime, stat.st_mtime_nsec));
    }
    Some(hex(&hash.finalize()))
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
        let paths = scripts(command, &workspace).into_keys();
        paths.map(|path| path.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_files_that_a_command_runs_are_found() {
        for (command, expected) in [
            ("sh run.sh", &["run.sh"][..]),
            ("./run.sh data", &["./run.sh"]),
            ("/bin/sh -e run.sh", &["run.sh"]),
            ("python3.12 a.py data", &["a.py"]),
            ("python3 <a.py", &["a.py"]),
            ("cat a.py | python3", &[]),
            ("env X=1 timeout 5 python3 -u a.py", &["a.py"]),
            ("bash -c 'python3 a.py'", &["a.py"]),
            ("bash -c \"cd tools; node x.js\"", &["tools/x.js"]),
            ("cd tools && node --require ./x.js y.js", &["tools/./x.js"]),
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
            ("python3 /etc/passwd ../x", &[]),
        ] {
            assert_eq!(found(command), expected, "{command}");
        }
    }
}
