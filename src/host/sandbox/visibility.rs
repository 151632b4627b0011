//! Visibility: the paths of the file system that a command sees, and those that are hidden from it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::credentials::{CREDENTIALS, credential_locations};
use super::hidden_paths::HiddenPaths;
use super::hidden_watch::{HiddenNames, HiddenWatch, hidden_places};
use super::home_view::{HomeRequest, HomeView};
use super::name_cache::{NameCache, NameEntry};
use super::recent_specs::SpecBasis;
use super::spec::{Network, Sandbox, SandboxSpec, expand_tilde};
use super::{Profile, home_list, mounts, system_paths};
use crate::base::paths;
use crate::base::paths::Home;
use crate::settings::config;

/// Visible and hidden paths in the user's home folder, by settings and environment.
#[derive(Debug, Clone, Default)]
pub struct HomePlaces {
    /// Paths that commands see by default.
    listed: Vec<PathBuf>,
    /// Places of credentials, without those in `sandbox.read`.
    credentials: Arc<[PathBuf]>,
    /// The paths of the setting `sandbox.read`.
    read: Vec<PathBuf>,
}

impl HomePlaces {
    /// Computes the paths once; `folder` returns the folder in a variable.
    pub fn new(
        settings: &config::SandboxSettings,
        home: Option<&Path>,
        folder: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Self {
        let read: Vec<PathBuf> =
            settings.read.iter().filter_map(|path| expand_tilde(path, home)).collect();
        let Some(home) = home else {
            return Self { read, ..Self::default() };
        };
        let lists = [home_list::TOOL_CHAINS, home_list::CACHES, home_list::SETTINGS];
        let listed = lists.into_iter().flatten();
        let credentials =
            CREDENTIALS.iter().flat_map(|own| credential_locations(own.path, home, folder));
        Self {
            listed: listed.flat_map(|path| credential_locations(path, home, folder)).collect(),
            credentials: credentials.filter(|path| !read.contains(path)).collect(),
            read,
        }
    }
}

/// Whether a path is in a closed folder, outside its visible parts.
pub fn is_unseen(closed: &[PathBuf], seen: &[&[PathBuf]], path: &Path) -> bool {
    let around = closed.iter().filter(|closed| path.starts_with(closed));
    let Some(innermost) = around.max_by_key(|closed| closed.components().count()) else {
        return false;
    };
    let mut inside = seen.iter().copied().flatten().filter(|seen| seen.starts_with(innermost));
    !inside.any(|seen| path.starts_with(seen))
}

impl Sandbox {
    /// The part of the homes that a command sees.
    pub(super) fn home_view(&self, basis: &SpecBasis, names: &NameCache) -> HomeView {
        let trusted = self.trusted_named_paths(basis, names);
        let ends = trusted.iter().filter_map(|path| names.canonical(path));
        let ends: Vec<PathBuf> = ends.map(|path| whole_virtual_environment(path, names)).collect();
        HomeView::new(
            &HomeRequest {
                home: self.user_home.as_deref(),
                workspace: &basis.workspace,
                extra_roots: &basis.extra_roots,
                reach: &basis.reach,
                listed: &self.home_places.listed,
                named_paths: &[&ends[..], &self.named_paths].concat(),
                read: &self.home_places.read,
                git_settings: &basis.git_files,
                repositories: &basis.repositories,
                credentials: &self.home_places.credentials,
            },
            names,
        )
    }

    /// The paths that the environment names, without those through a link that a command could create, because
    /// the command could choose its target.
    fn trusted_named_paths(&self, basis: &SpecBasis, names: &NameCache) -> Vec<PathBuf> {
        let is_trusted = |path: &&PathBuf| !names.has_link_in(path, &basis.reach);
        self.named_paths.iter().filter(is_trusted).cloned().collect()
    }

    /// The folders that programs need in replaced folders, and the read-only paths that are visible without a
    /// view. Returns the latter first.
    pub(super) fn visible_paths(
        &self,
        basis: &SpecBasis,
        names: &NameCache,
    ) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let is_folder = |path: &PathBuf| matches!(names.entry(path), NameEntry::Folder { .. });
        let trusted = self.trusted_named_paths(basis, names);
        // A socket or device is not shown, even if the environment names it.
        let is_plain = |path: &PathBuf| path.is_dir() || path.is_file();
        let ends = trusted.iter().filter_map(|path| names.canonical(path)).filter(is_plain);
        let (mut viewed, mut shown): (Vec<_>, Vec<_>) = ends
            .map(|path| whole_virtual_environment(path, names))
            .filter(|path| mounts::is_replaced(path) && !mounts::is_replaced_itself(path))
            .partition(is_folder);
        // Links in a replaced folder are needed as well as their targets.
        let links = trusted.iter().flat_map(|path| names.resolve_absolute(path).links);
        let is_within =
            |list: &[PathBuf], path: &Path| list.iter().any(|own| path.starts_with(own));
        let is_missed = |link: &PathBuf| {
            mounts::is_replaced(link)
                && !is_within(&viewed, link)
                && !is_within(&basis.writable, link)
        };
        shown.extend(links.filter(is_missed));
        if basis.profile == Profile::ReadOnly {
            shown.push(basis.workspace.clone());
        }
        if basis.repository_top != basis.workspace {
            shown.push(basis.repository_top.clone());
        }
        if basis.network == Network::Open {
            // `/etc/resolv.conf` is often a link into `/run`.
            let resolver = names.canonical(Path::new("/etc/resolv.conf"));
            shown.extend(resolver.filter(|path| mounts::is_replaced(path)));
        }
        for list in [&mut shown, &mut viewed] {
            list.sort();
            list.dedup();
        }
        // A path in a visible folder is visible with that folder.
        viewed.dedup_by(|later, earlier| later.starts_with(earlier));
        (shown, viewed)
    }

    /// The paths to hide in Pixir's folder when it contains the Workspace or is in it: the tokens, and for a
    /// child Workspace all entries except the folder of child Workspaces.
    fn hidden_state_paths(&self, workspace: &Path) -> Vec<PathBuf> {
        let home = Home::new(&self.state);
        let mut hidden = vec![home.auth()];
        if workspace.starts_with(home.child_workspaces()) {
            let entries = std::fs::read_dir(&self.state).into_iter().flatten().flatten();
            let others = entries.map(|entry| entry.path());
            hidden.extend(others.filter(|path| *path != home.child_workspaces()));
        }
        hidden
    }

    /// The hidden names other than credentials: those of the settings, and Pixir's own folder.
    pub(super) fn hidden_names(&self, workspace: &Path) -> Vec<PathBuf> {
        let home = self.user_home.as_deref();
        // The whole folder is hidden if it holds only Pixir's files, because the tokens may be written later.
        let is_shared = self.state == paths::state_folder(workspace)
            || workspace.starts_with(&self.state)
            || home.is_some_and(|home| home.starts_with(&self.state));
        let own =
            if is_shared { self.hidden_state_paths(workspace) } else { vec![self.state.clone()] };
        let configured = self.settings.hide.iter().filter_map(|path| expand_tilde(path, home));
        own.into_iter().chain(configured).collect()
    }

    /// A watch on the targets of hidden names while a command runs, outside of the command's mounts.
    pub fn hidden_watch(&self, workspace: &Path, spec: &SandboxSpec) -> HiddenWatch {
        let names = HiddenNames {
            always: self.hidden_names(workspace),
            credentials: Arc::clone(&self.home_places.credentials),
            home: self.user_home.clone(),
        };
        HiddenWatch::new(names, workspace, spec, self.recent_specs.recorded_names(spec))
    }

    /// The paths that are hidden from a command, for a search in its output.
    pub fn hidden_paths(&self, spec: &SandboxSpec) -> HiddenPaths {
        HiddenPaths::new(spec, self.user_home.as_deref(), Arc::clone(&self.home_places.credentials))
    }

    /// The paths to hide; credentials only where they would be visible.
    pub(super) fn paths_to_hide(
        &self,
        basis: &SpecBasis,
        is_unseen: &dyn Fn(&Path) -> bool,
        names: &NameCache,
    ) -> Vec<PathBuf> {
        let SpecBasis { workspace, writable, hidden_names: always, .. } = basis;
        let is_possible = |name: &&PathBuf| names.may_exist(name) || !is_unseen(name);
        let of_home = self.home_places.credentials.iter().filter(is_possible).cloned();
        let credentials: Vec<PathBuf> = of_home.collect();
        let of_system =
            system_paths::system_credentials().filter(|path| !self.home_places.read.contains(path));
        // A command that can create the link can choose its target.
        let is_in_reach = |link: &Path| {
            link.starts_with(workspace) || writable.iter().any(|root| link.starts_with(root))
        };
        // Pixir's own folder depends on the Workspace.
        let of_user = always.iter().chain(&credentials);
        let of_user = of_user.filter(|name| !name.starts_with(&self.state));
        let earlier = self.earlier_targets.update(of_user, is_in_reach, names);
        let places = credentials.into_iter().chain(of_system);
        let places = places.flat_map(|name| hidden_places(&name, names));
        let seen = places.chain(earlier).filter(|place| !is_unseen(place));
        let always = always.iter().flat_map(|name| hidden_places(name, names));
        // A folder that contains the Workspace is not hidden, because the user chose the Workspace.
        let is_meant = |path: &PathBuf| !workspace.starts_with(path);
        let mut hidden: Vec<PathBuf> = always.chain(seen).filter(is_meant).collect();
        hidden.sort();
        // A path in a hidden folder is hidden with that folder.
        hidden.dedup_by(|later, earlier| later.starts_with(earlier));
        hidden
    }
}

/// The whole virtual environment of a Python `bin` folder, because its programs need the other folders.
fn whole_virtual_environment(path: PathBuf, names: &NameCache) -> PathBuf {
    let has_settings = |around: &&Path| names.canonical(&around.join("pyvenv.cfg")).is_some();
    let around = path.parent().filter(has_settings).map(Path::to_owned);
    around.unwrap_or(path)
}
