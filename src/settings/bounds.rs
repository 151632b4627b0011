//! Write bounds: globs for the paths of a Workspace that tools may write.
//!
//! Each run may add a set, and all sets apply together, so bounds only ever narrow. Globs are relative to
//! the Workspace; `*` and `?` stay within a name, `**` crosses folders.

use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// The most globs of one set.
const MAX_GLOBS: usize = 100;

/// The globs of one run, as given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteGlobs {
    /// Paths that may be written; empty means all.
    pub allow: Vec<String>,
    /// Paths that may not be written, even if allowed.
    pub deny: Vec<String>,
}

impl WriteGlobs {
    /// Whether there is no bound.
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

/// All sets of globs that apply to a Session.
#[derive(Debug, Clone, Default)]
pub struct WriteBounds {
    sets: Vec<BoundSet>,
}

#[derive(Debug, Clone)]
struct BoundSet {
    globs: WriteGlobs,
    allow: GlobSet,
    deny: GlobSet,
}

/// The folders that commands may write under bounds, as a kernel sandbox can enforce them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WritableFolders {
    /// The folders, relative to the Workspace; the empty path is the whole Workspace.
    pub folders: Vec<PathBuf>,
    /// Paths in these folders that may not be written.
    pub except: Vec<PathBuf>,
}

impl WriteBounds {
    /// No bounds.
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a set; an empty or known one changes nothing.
    pub fn add_globs(&mut self, globs: &WriteGlobs) -> Result<(), String> {
        if globs.is_empty() || self.sets.iter().any(|set| set.globs == *globs) {
            return Ok(());
        }
        let set = |globs: &[String], reaches_beneath: bool| {
            if globs.len() > MAX_GLOBS {
                return Err(format!("more than {MAX_GLOBS} globs"));
            }
            let mut set = GlobSetBuilder::new();
            for glob in globs {
                set.add(compile_glob(glob)?);
                // Denying a folder denies its contents too.
                let pattern = normalize_glob(glob);
                if reaches_beneath && !pattern.ends_with("**") {
                    set.add(compile_glob(&format!("{pattern}/**"))?);
                }
            }
            set.build().map_err(|error| error.to_string())
        };
        self.sets.push(BoundSet {
            allow: set(&globs.allow, false)?,
            deny: set(&globs.deny, true)?,
            globs: globs.clone(),
        });
        Ok(())
    }

    /// Whether there is no set.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// The sets, oldest first.
    pub fn sets(&self) -> impl Iterator<Item = &WriteGlobs> {
        self.sets.iter().map(|set| &set.globs)
    }

    /// Whether a path, relative to the Workspace and with its links resolved, may be written.
    pub fn allows(&self, path: &Path) -> bool {
        self.sets.iter().all(|set| {
            let is_allowed = set.globs.allow.is_empty() || set.allow.is_match(path);
            is_allowed && !set.deny.is_match(path)
        })
    }

    /// The folders that are completely within the bounds. Globs that a kernel cannot express, such as `*.md`,
    /// are left out: a command may write less than a tool, never more.
    pub fn writable_folders(&self) -> WritableFolders {
        let mut folders = vec![PathBuf::new()];
        for set in self.sets.iter().filter(|set| !set.globs.allow.is_empty()) {
            let whole: Vec<PathBuf> =
                set.globs.allow.iter().filter_map(|glob| whole_folder(glob)).collect();
            folders = folders
                .iter()
                .flat_map(|one| whole.iter().filter_map(|other| intersect_folders(one, other)))
                .collect();
        }
        folders.sort();
        folders.dedup();
        let denied: Vec<&String> = self.sets.iter().flat_map(|set| &set.globs.deny).collect();
        let mut except = Vec::new();
        folders.retain(|folder| {
            denied.iter().all(|glob| match literal_path(glob) {
                Some(place) if folder.starts_with(&place) => false,
                Some(place) => {
                    if place.starts_with(folder) {
                        except.push(place);
                    }
                    true
                }
                // A pattern may match anywhere below its literal start.
                None => {
                    let start = literal_start(glob);
                    !start.starts_with(folder) && !folder.starts_with(&start)
                }
            })
        });
        except.sort();
        except.dedup();
        except.retain(|place| folders.iter().any(|folder| place.starts_with(folder)));
        WritableFolders { folders, except }
    }
}

/// A glob without `.` parts and superfluous slashes: with those it would match nothing.
fn normalize_glob(glob: &str) -> String {
    let parts: Vec<&str> =
        glob.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    parts.join("/")
}

fn compile_glob(glob: &str) -> Result<globset::Glob, String> {
    let refuse = |reason: &str| Err(format!("the glob {glob:?} {reason}"));
    let pattern = normalize_glob(glob);
    if pattern.is_empty() {
        return refuse("matches nothing");
    }
    let has_parent = |part: Component<'_>| part == Component::ParentDir;
    if glob.starts_with('/') || pattern.starts_with('~') {
        return refuse("must be relative to the Workspace");
    }
    if Path::new(&pattern).components().any(has_parent) {
        return refuse("must not contain `..`");
    }
    let built = GlobBuilder::new(&pattern).literal_separator(true).backslash_escape(true).build();
    built.map_err(|error| format!("the glob {glob:?} cannot be used: {}", error.kind()))
}

fn is_pattern(part: &str) -> bool {
    part.contains(['*', '?', '[', ']', '{', '}', '\\', '!'])
}

/// The folder that a glob covers completely, as `src/**` does.
fn whole_folder(glob: &str) -> Option<PathBuf> {
    let pattern = normalize_glob(glob);
    let folder = match pattern.as_str() {
        "**" | "**/*" => "",
        pattern => pattern.strip_suffix("/**/*").or_else(|| pattern.strip_suffix("/**"))?,
    };
    (!is_pattern(folder)).then(|| folder.into())
}

/// The literal path of a deny glob, if it has no pattern.
fn literal_path(glob: &str) -> Option<PathBuf> {
    let pattern = normalize_glob(glob);
    whole_folder(&pattern).or_else(|| (!is_pattern(&pattern)).then(|| pattern.into()))
}

/// The literal folders before the first pattern of a glob.
fn literal_start(glob: &str) -> PathBuf {
    normalize_glob(glob).split('/').take_while(|part| !is_pattern(part)).collect()
}

/// The deeper of two folders if one contains the other.
fn intersect_folders(one: &Path, other: &Path) -> Option<PathBuf> {
    if one.starts_with(other) {
        Some(one.to_owned())
    } else if other.starts_with(one) {
        Some(other.to_owned())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globs(allow: &[&str], deny: &[&str]) -> WriteGlobs {
        let owned = |globs: &[&str]| globs.iter().map(|glob| (*glob).to_owned()).collect();
        WriteGlobs { allow: owned(allow), deny: owned(deny) }
    }

    fn bounds(sets: &[(&[&str], &[&str])]) -> WriteBounds {
        let mut bounds = WriteBounds::none();
        for (allow, deny) in sets {
            bounds.add_globs(&globs(allow, deny)).unwrap();
        }
        bounds
    }

    #[track_caller]
    fn check(bounds: &WriteBounds, allowed: &[&str], refused: &[&str]) {
        for path in allowed {
            assert!(bounds.allows(Path::new(path)), "{path} should be allowed");
        }
        for path in refused {
            assert!(!bounds.allows(Path::new(path)), "{path} should be refused");
        }
    }

    #[test]
    fn a_star_stays_in_its_folder_and_two_stars_do_not() {
        check(&bounds(&[(&["*.md"], &[])]), &["a.md"], &["docs/a.md", "a.mdx", "a.rs"]);
        check(&bounds(&[(&["**/*.md"], &[])]), &["a.md", "docs/x/a.md"], &["a.rs"]);
        check(&bounds(&[(&["src/**"], &[])]), &["src/a", "src/a/b"], &["src", "src2/a", "a/src/b"]);
        check(&bounds(&[(&["src/*"], &[])]), &["src/a"], &["src/a/b"]);
        check(&bounds(&[(&["a?.{rs,md}"], &[])]), &["ab.rs", "ab.md"], &["a/.rs", "abc.rs"]);
        check(&bounds(&[(&["./docs/"], &[])]), &["docs"], &["docs/a"]);
    }

    #[test]
    fn what_is_forbidden_is_forbidden_with_everything_in_it() {
        let both = bounds(&[(&["src/**"], &["src/gen", "**/*.lock"])]);
        check(&both, &["src/a.rs"], &["src/gen", "src/gen/deep/x", "src/a.lock", "README.md"]);
        check(&bounds(&[(&[], &["vendor"])]), &["a", "vendor2/a"], &["vendor", "vendor/a"]);
        check(&bounds(&[]), &["anything"], &[]);
        for odd in ["src//gen", "./src/./gen/", ".//src/gen", "src/gen/."] {
            check(&bounds(&[(&[], &[odd])]), &["src/a"], &["src/gen", "src/gen/x"]);
        }
    }

    #[test]
    fn every_set_holds_so_bounds_only_narrow() {
        let twice = bounds(&[(&["src/**"], &[]), (&["**/*.rs"], &[]), (&["src/**"], &[])]);
        assert_eq!(twice.sets().count(), 2, "what holds already is not added");
        check(&twice, &["src/a.rs"], &["src/a.md", "b.rs"]);
    }

    #[test]
    fn a_glob_that_leaves_the_workspace_is_refused() {
        for glob in ["/etc/*", "~/x", "../x", "a/../../x", "", "/", ".", "./.", "[", "a/{b"] {
            assert!(WriteBounds::none().add_globs(&globs(&[glob], &[])).is_err(), "{glob}");
            assert!(WriteBounds::none().add_globs(&globs(&[], &[glob])).is_err(), "{glob}");
        }
    }

    #[test]
    fn commands_reach_whole_folders_and_never_more_than_tools() {
        let reach = |sets: &[(&[&str], &[&str])]| {
            let WritableFolders { folders, except } = bounds(sets).writable_folders();
            let shown = |paths: Vec<PathBuf>| {
                paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(",")
            };
            format!("{}|{}", shown(folders), shown(except))
        };
        assert_eq!(reach(&[]), "|");
        assert_eq!(bounds(&[]).writable_folders().folders, [PathBuf::new()]);
        assert_eq!(reach(&[(&["src/**", "docs/**", "*.md"], &[])]), "docs,src|");
        assert_eq!(reach(&[(&["src/**"], &[]), (&["src/a/**", "b/**"], &[])]), "src/a|");
        assert_eq!(reach(&[(&["src/**"], &["src/gen/**"])]), "src|src/gen");
        assert_eq!(reach(&[(&["src/gen/**"], &["src"])]), "|");
        assert!(bounds(&[(&["src/gen/**"], &["src"])]).writable_folders().folders.is_empty());
        assert!(bounds(&[(&[], &["**/*.lock"])]).writable_folders().folders.is_empty());
        assert_eq!(reach(&[(&["src/**", "docs/**"], &["src/**/*.lock"])]), "docs|");
        assert!(bounds(&[(&["*.md"], &[])]).writable_folders().folders.is_empty());
    }
}
