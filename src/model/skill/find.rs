//! Finds Skills in a few folders; only files that changed since the last search are read again.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Stat;
use serde::Serialize;

use super::{FileDiagnostic, MAIN_FILE, SearchRoot, Skill, SkillScope, front_matter};
use crate::base::id::sha256;
use crate::host::workspace::Workspace;
use crate::settings::trust::{TrustDecision, TrustStore};

/// How many entries of one folder are read.
const MOST_ENTRIES: usize = 500;
/// The largest main file, in bytes.
pub const LARGEST: u64 = 256 * 1024;
/// The most bytes of all main files of one folder: they stay in memory while a Session is open.
const LARGEST_SUM: usize = 16 * 1024 * 1024;

/// The Skills and problems that were found.
#[derive(Debug, Clone, Default)]
pub struct FoundSkills {
    /// Skills by name; of several with the same name, the one that takes precedence.
    pub skills: Vec<Arc<Skill>>,
    /// All readable Skills, including shadowed ones.
    pub all: Vec<Arc<Skill>>,
    /// Names that several Skills have.
    pub shadowed: Vec<ShadowedSkill>,
    /// Packages that cannot be used, and why.
    pub broken: Vec<FileDiagnostic>,
}

/// A name that several Skills have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShadowedSkill {
    pub name: String,
    /// The location of the Skill that is used.
    pub selected: String,
    /// The locations of the Skills that are not used.
    pub shadowed: Vec<String>,
}

impl std::fmt::Display for ShadowedSkill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, selected, shadowed } = self;
        write!(f, "`{name}` is {selected}; not used: {}", shadowed.join(", "))
    }
}

/// The Skills that were read before, by folder.
#[derive(Debug, Default)]
pub struct SkillCache(HashMap<PathBuf, CachedSkill>);

#[derive(Debug, Clone)]
struct CachedSkill {
    stamp: SkillFileStamp,
    /// The Skill without the user's trust, which may change while the file does not.
    outcome: Result<Arc<Skill>, FileDiagnostic>,
}

/// The metadata of a file that shows a change.
type SkillFileStamp = (u64, u64, i64, i64, u64, i64, u64);

impl SkillCache {
    /// Reads the folders again, and the files that changed.
    pub fn refresh(&mut self, roots: &[SearchRoot], trust: &TrustStore) -> FoundSkills {
        let mut found = FoundSkills::default();
        let mut seen = HashMap::new();
        // The rank is the order of precedence.
        let mut all: Vec<(usize, Arc<Skill>)> = Vec::new();
        let trusted = TrustedFiles::new(trust);
        for (rank, root) in roots.iter().enumerate() {
            let mut sum = 0;
            let boundary = root.boundary.as_deref();
            for folder in list_paths(&root.path, boundary, (MOST_ENTRIES, None), &mut found.broken)
            {
                let Some(known) = self.read_cached(&folder, root) else { continue };
                // An I/O error may not recur next time, although the file is the same.
                if known.outcome.as_ref().map_or_else(|flaw| flaw.line.is_some(), |_| true) {
                    seen.insert(folder, known.clone());
                }
                match known.outcome {
                    Err(flaw) => found.broken.push(flaw),
                    Ok(skill) => {
                        sum += skill.text.len();
                        if sum > LARGEST_SUM {
                            let words = "its skills have more than 16 MiB; the rest is left out";
                            found
                                .broken
                                .push(FileDiagnostic::whole_file(words).in_file(&root.path));
                            break;
                        }
                        let is_trusted =
                            !skill.is_foreign || trusted.covers(&skill.path, &skill.digest);
                        let skill = if is_trusted == skill.is_trusted {
                            skill
                        } else {
                            Arc::new(Skill { is_trusted, ..Skill::clone(&skill) })
                        };
                        all.push((rank, skill));
                    }
                }
            }
        }
        // Removed files leave the cache.
        self.0 = seen;
        // An untrusted Skill never shadows a trusted one.
        all.sort_by_cached_key(|(rank, skill)| {
            (skill.name().to_owned(), !skill.is_trusted, *rank, skill.path.clone())
        });
        for (_, skill) in all {
            found.all.push(Arc::clone(&skill));
            match found.skills.last() {
                Some(first) if first.name() == skill.name() => note_shadowed(&mut found, &skill),
                _ => found.skills.push(skill),
            }
        }
        found
    }

    /// The Skill in a folder, from the cache or read again; `None` when it has none.
    fn read_cached(&self, folder: &Path, root: &SearchRoot) -> Option<CachedSkill> {
        let path = folder.join(MAIN_FILE);
        let print = match rustix::fs::stat(&path) {
            Ok(stat) => stamp_of_stat(&stat),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {
                let meant = ["skill.md", "Skill.md"].map(|name| folder.join(name));
                let meant = meant.into_iter().find(|path| path.is_file())?;
                let flaw = FileDiagnostic::whole_file(format!("it must be named {MAIN_FILE}"))
                    .in_file(&meant);
                return Some(CachedSkill { stamp: SkillFileStamp::default(), outcome: Err(flaw) });
            }
            Err(errno) => {
                let flaw =
                    FileDiagnostic::whole_file(io::Error::from(errno).to_string()).in_file(&path);
                return Some(CachedSkill { stamp: SkillFileStamp::default(), outcome: Err(flaw) });
            }
        };
        if let Some(known) = self.0.get(folder).filter(|known| known.stamp == print) {
            return Some(known.clone());
        }
        let outcome =
            read_skill(folder, &path, root).map(Arc::new).map_err(|flaw| flaw.in_file(&path));
        Some(CachedSkill { stamp: print, outcome })
    }
}

/// Reads one package, or all packages in a folder, anywhere and without checking trust.
pub fn examine_skills(path: &Path) -> FoundSkills {
    let is_file = path.file_name().is_some_and(|name| name == MAIN_FILE);
    let folder = if is_file { path.parent().unwrap_or(path) } else { path };
    let is_package = folder.join(MAIN_FILE).symlink_metadata().is_ok();
    let root = |path: &Path| SearchRoot {
        path: path.to_owned(),
        scope: SkillScope::User,
        needs_trust: false,
        workspace: None,
        boundary: None,
    };
    let mut found = FoundSkills::default();
    let folders = if is_package {
        vec![folder.to_owned()]
    } else {
        list_paths(folder, None, (MOST_ENTRIES, None), &mut found.broken)
    };
    for folder in folders {
        match SkillCache::default().read_cached(&folder, &root(&folder)).map(|known| known.outcome)
        {
            None => {}
            Some(Err(flaw)) => found.broken.push(flaw),
            Some(Ok(skill)) => found.skills.push(skill),
        }
    }
    found.all.clone_from(&found.skills);
    found
}

fn note_shadowed(found: &mut FoundSkills, skill: &Skill) {
    let Some(first) = found.skills.last() else { return };
    let (name, path) = (skill.name(), short_location(skill));
    match found.shadowed.last_mut().filter(|shadow| shadow.name == name) {
        Some(shadow) => shadow.shadowed.push(path),
        None => found.shadowed.push(ShadowedSkill {
            name: name.to_owned(),
            selected: short_location(first),
            shadowed: vec![path],
        }),
    }
}

/// The scope and the last folders of a Skill's path, to tell Skills of the same name apart.
fn short_location(skill: &Skill) -> String {
    let mut folders: Vec<_> = skill.path.components().rev().take(4).collect();
    folders.reverse();
    let path: PathBuf = folders.into_iter().collect();
    format!("{}:{}", skill.scope.name(), path.display())
}

/// The files that the user trusts; the decisions are read on first use.
pub struct TrustedFiles<'a> {
    trust: &'a TrustStore,
    decisions: OnceCell<Vec<TrustDecision>>,
}

impl<'a> TrustedFiles<'a> {
    pub fn new(trust: &'a TrustStore) -> Self {
        Self { trust, decisions: OnceCell::new() }
    }

    /// Whether the user trusts a file with this content.
    pub fn covers(&self, file: &Path, digest: &str) -> bool {
        let words = self.decisions.get_or_init(|| self.trust.read_decisions());
        words.iter().any(|word| word.file == file && word.digest == digest && word.trusted)
    }
}

/// Lists the paths in a folder, sorted: at most `most`, with this extension if one is given.
pub fn list_paths(
    folder: &Path,
    boundary: Option<&Path>,
    (most, extension): (usize, Option<&str>),
    broken: &mut Vec<FileDiagnostic>,
) -> Vec<PathBuf> {
    let entries = open_folder_entries(folder, boundary).unwrap_or_else(|flaw| {
        broken.push(flaw);
        None
    });
    let is_meant = |path: &PathBuf| {
        extension.is_none_or(|own| path.extension().is_some_and(|extension| extension == own))
    };
    let paths = entries.into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    limit_paths(most, paths.filter(is_meant), folder, broken)
}

/// Sorts the paths of one folder; when there are more than `most`, a diagnostic says so.
pub fn limit_paths(
    most: usize,
    paths: impl Iterator<Item = PathBuf>,
    folder: &Path,
    broken: &mut Vec<FileDiagnostic>,
) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = paths.take(most + 1).collect();
    if paths.len() > most {
        let message = format!("it has more than {most} entries; the rest is left out");
        broken.push(FileDiagnostic::whole_file(message).in_file(folder));
        paths.truncate(most);
    }
    paths.sort();
    paths
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn stamp_of_stat(stat: &Stat) -> SkillFileStamp {
    (
        stat.st_dev,
        stat.st_ino,
        stat.st_size,
        stat.st_mtime,
        stat.st_mtime_nsec,
        stat.st_ctime,
        stat.st_ctime_nsec,
    )
}

/// Reads a Skill. The folder of a project's Skill may be a link within the project, that of a user's Skill
/// a link to anywhere; the main file must be in its folder.
fn read_skill(folder: &Path, path: &Path, root: &SearchRoot) -> Result<Skill, FileDiagnostic> {
    let space =
        Workspace::open(folder).map_err(|error| FileDiagnostic::whole_file(error.to_string()))?;
    let real = space.root().to_owned();
    refuse_escape(&real, root.boundary.as_deref())?;
    let bytes = read_limited(&space, Path::new(MAIN_FILE), LARGEST)?;
    let text = decode_text(&bytes)?;
    let Some(name) = folder.file_name().unwrap_or_default().to_str() else {
        return Err(FileDiagnostic::whole_file("the name of its folder is not UTF-8"));
    };
    let mut warnings = Vec::new();
    let front = front_matter::read_front_matter(text, name, &mut warnings)?;
    let warnings = warnings.into_iter().map(|flaw| flaw.in_file(path)).collect();
    Ok(Skill {
        front_matter: front,
        scope: root.scope,
        is_foreign: root.is_foreign(&real),
        folder: real,
        path: path.to_owned(),
        text: text.into(),
        digest: sha256(&bytes),
        is_trusted: false,
        warnings,
    })
}

/// Reads a file that was written for a model; returns its bytes and its folder, links resolved. With a
/// `boundary`, the root of a project, no link may lead out of the folder or the project; the user's own
/// files may be links to anywhere.
pub fn read_within_boundary(
    path: &Path,
    boundary: Option<&Path>,
    largest: u64,
) -> Result<(Vec<u8>, PathBuf), FileDiagnostic> {
    let real = match boundary {
        Some(_) => path.to_owned(),
        None => {
            path.canonicalize().map_err(|error| FileDiagnostic::whole_file(error.to_string()))?
        }
    };
    let folder = real.parent().unwrap_or(Path::new("/"));
    let space =
        Workspace::open(folder).map_err(|error| FileDiagnostic::whole_file(error.to_string()))?;
    refuse_escape(space.root(), boundary)?;
    let bytes = read_limited(&space, real.file_name().unwrap_or_default().as_ref(), largest)?;
    Ok((bytes, space.root().to_owned()))
}

/// Refuses a folder that is outside of the project through a link.
pub fn refuse_escape(real: &Path, boundary: Option<&Path>) -> Result<(), FileDiagnostic> {
    let boundary = boundary.and_then(|boundary| boundary.canonicalize().ok());
    if boundary.is_some_and(|boundary| !real.starts_with(boundary)) {
        return Err(FileDiagnostic::whole_file(
            "its folder is a link that leads out of the project",
        ));
    }
    Ok(())
}

/// Opens a folder of files that were written for a model; `None` when it does not exist. A link out of the
/// project is an error.
pub fn open_folder_entries(
    folder: &Path,
    boundary: Option<&Path>,
) -> Result<Option<fs::ReadDir>, FileDiagnostic> {
    let failed = |error: io::Error| {
        if is_absent(&error) {
            Ok(None)
        } else {
            Err(FileDiagnostic::whole_file(error.to_string()).in_file(folder))
        }
    };
    match folder.canonicalize() {
        Ok(real) => refuse_escape(&real, boundary).map_err(|flaw| flaw.in_file(folder))?,
        Err(error) => return failed(error),
    }
    fs::read_dir(folder).map(Some).or_else(failed)
}

/// Reads a regular file below a folder, up to a size.
pub fn read_limited(
    space: &Workspace,
    path: &Path,
    largest: u64,
) -> Result<Vec<u8>, FileDiagnostic> {
    let open =
        space.open_file(path).map_err(|error| FileDiagnostic::whole_file(error.to_string()))?;
    let mut bytes = Vec::new();
    open.file
        .take(largest + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| FileDiagnostic::whole_file(error.to_string()))?;
    if bytes.len() as u64 > largest {
        return Err(FileDiagnostic::whole_file(format!("it is larger than {largest} bytes")));
    }
    Ok(bytes)
}

/// Decodes UTF-8 text without NUL; the error has the line.
pub fn decode_text(bytes: &[u8]) -> Result<&str, FileDiagnostic> {
    let line = |end: usize| 1 + memchr::memchr_iter(b'\n', &bytes[..end]).count();
    if let Some(place) = memchr::memchr(0, bytes) {
        return Err(FileDiagnostic::at_line(line(place), "it is not text: there is a NUL byte"));
    }
    std::str::from_utf8(bytes)
        .map_err(|error| FileDiagnostic::at_line(line(error.valid_up_to()), "it is not UTF-8"))
}
