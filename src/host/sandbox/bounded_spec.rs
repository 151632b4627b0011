//! Write bounds as sandbox paths: whole folders that may be written, and paths in them that must not
//! change.
//!
//! A glob that mounts cannot express, such as `*.md`, makes nothing writable for commands. A bound
//! whose path contains a link is not followed: the folder it names stays read-only.

use std::path::Path;

use super::git::folders_between;
use super::spec::SandboxSpec;
use crate::settings::bounds::{WritableFolders, WriteBounds};

impl SandboxSpec {
    /// This spec with the Workspace writable only within the bounds.
    #[must_use]
    pub fn bounded(mut self, workspace: &Path, bounds: &WriteBounds) -> Self {
        let is_writable = self.writable.iter().any(|path| path == workspace);
        if bounds.is_empty() || !is_writable {
            return self;
        }
        // A configured root that contains the Workspace would make all of it writable.
        self.writable.retain(|path| !path.starts_with(workspace) && !workspace.starts_with(path));
        let is_itself =
            |path: &Path| path.canonicalize().is_ok_and(|real| real == path && real.is_dir());
        let WritableFolders { folders, except } = bounds.writable_folders();
        for folder in folders.iter().map(|folder| join_folder(workspace, folder)) {
            let inside: Vec<_> = except
                .iter()
                .map(|place| workspace.join(place))
                .filter(|place| place.starts_with(&folder))
                .collect();
            // A path through a link ends outside this folder, where nothing protects it.
            let leads_away = |place: &Path| {
                let parent = place.parent().unwrap_or(workspace);
                parent.canonicalize().is_ok_and(|real| real != parent) || place.is_symlink()
            };
            if !is_itself(&folder) || inside.iter().any(|place| leads_away(place)) {
                continue;
            }
            for place in &inside {
                for between in folders_between(&folder, place) {
                    if !self.writable.contains(&between) {
                        self.writable.push(between);
                    }
                }
            }
            self.writable.push(folder);
            for place in inside {
                let list =
                    if place.exists() { &mut self.protected } else { &mut self.must_be_absent };
                list.push(place);
            }
        }
        let is_there = |paths: &[std::path::PathBuf]| paths.iter().any(|path| path == workspace);
        // The rest of the Workspace can still be read.
        if !is_there(&self.writable) && !is_there(&self.shown) {
            self.shown.push(workspace.to_owned());
        }
        self
    }
}

/// A folder of the bounds as an absolute path; the empty path is the Workspace itself.
fn join_folder(workspace: &Path, folder: &Path) -> std::path::PathBuf {
    if folder.as_os_str().is_empty() { workspace.to_owned() } else { workspace.join(folder) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::host::sandbox::limits::CommandLimits;
    use crate::host::sandbox::spec::{Network, RequiredEnforcement, SocketExposure};
    use crate::settings::bounds::WriteGlobs;

    fn spec(workspace: &Path) -> SandboxSpec {
        SandboxSpec {
            required: RequiredEnforcement::Partial,
            network: Network::Closed,
            scratch: "/scratch".into(),
            writable: vec![workspace.to_owned(), "/cache".into()],
            protected: vec![workspace.join(".pixir")],
            must_be_absent: Vec::new(),
            hidden: Vec::new(),
            closed_homes: Vec::new(),
            shown: Vec::new(),
            viewed: Vec::new(),
            caches: crate::host::sandbox::cache_spec::CacheSpec::default(),
            sockets: SocketExposure::Covered,
            local_sockets: false,
            git_settings: Vec::new(),
            limits: CommandLimits::default(),
            inode_digest: 0,
        }
    }

    fn bounds(allow: &[&str], deny: &[&str]) -> WriteBounds {
        let owned = |globs: &[&str]| globs.iter().map(|glob| (*glob).to_owned()).collect();
        let mut bounds = WriteBounds::none();
        bounds.add_globs(&WriteGlobs { allow: owned(allow), deny: owned(deny) }).unwrap();
        bounds
    }

    #[test]
    fn only_whole_folders_stay_writable() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in ["src/gen", "docs", "other"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::os::unix::fs::symlink("other", root.join("link")).unwrap();
        let cache = PathBuf::from("/cache");
        let spec = || spec(&root);
        assert_eq!(spec().bounded(&root, &WriteBounds::none()), spec());
        let bounded = spec().bounded(&root, &bounds(&["src/**", "*.md", "link/**"], &["src/gen"]));
        assert_eq!(bounded.writable, [cache.clone(), root.join("src")]);
        assert_eq!(bounded.protected, [root.join(".pixir"), root.join("src/gen")]);
        assert!(bounded.shown.contains(&root), "what is closed can be read");
        let whole = spec().bounded(&root, &bounds(&["**"], &[]));
        assert!(
            whole.writable.contains(&root) && !whole.shown.contains(&root),
            "nothing covers it"
        );
        std::fs::create_dir_all(root.join("src/a/b")).unwrap();
        let deep = spec().bounded(&root, &bounds(&["src/**"], &["src/a/b"]));
        assert_eq!(deep.writable, [cache.clone(), root.join("src/a"), root.join("src")]);
        let missing = spec().bounded(&root, &bounds(&[], &["src/new", "docs"]));
        assert_eq!(missing.writable, [cache.clone(), root.join("src"), root.clone()]);
        assert_eq!(missing.must_be_absent, [root.join("src/new")]);
        assert!(missing.protected.contains(&root.join("docs")));
        for closed in
            [bounds(&["*.md"], &[]), bounds(&[], &["**/*.lock"]), bounds(&[], &["link/x"])]
        {
            assert_eq!(spec().bounded(&root, &closed).writable, std::slice::from_ref(&cache));
        }
        let mut around = spec();
        around.writable.extend(root.parent().map(Path::to_owned));
        let bounded = around.bounded(&root, &bounds(&["src/**"], &[]));
        assert_eq!(bounded.writable, [cache.clone(), root.join("src")]);
        let mut read_only = spec();
        read_only.writable.clear();
        assert!(read_only.bounded(&root, &bounds(&["src/**"], &[])).writable.is_empty());
    }
}
