//! Tests of sandbox specs and protected files, without running commands.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::git::{RepositoryPaths, repository_paths};
use super::name_cache::NameCache;
use super::spec::{Network, RequiredEnforcement};
use super::*;
use crate::base::paths::Home;
use crate::settings::config::{Config, NetworkRule};

struct SandboxFixture {
    folder: tempfile::TempDir,
    root: PathBuf,
}

impl SandboxFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let place = Self { folder, root };
        for name in ["home/.ssh", "home/.cache", "home/.pixir", "work", "scratch"] {
            fs::create_dir_all(place.path(name)).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn sandbox(&self, adjust: impl FnOnce(&mut Config)) -> Sandbox {
        let mut config = Config::new(Home::new(self.path("home/.pixir")));
        adjust(&mut config);
        let environment: [(OsString, OsString); 1] = [("HOME".into(), self.path("home").into())];
        Sandbox::new(&config, &environment)
    }

    fn spec(&self, sandbox: &Sandbox, profile: Profile, network: bool) -> Option<SandboxSpec> {
        self.spec_with_extra_roots(sandbox, profile, network, &[])
    }

    fn spec_with_extra_roots(
        &self,
        sandbox: &Sandbox,
        profile: Profile,
        network: bool,
        extra_roots: &[PathBuf],
    ) -> Option<SandboxSpec> {
        let (workspace, scratch) = (&*self.path("work"), &*self.path("scratch"));
        let local_sockets = false;
        sandbox.spec(&SandboxRequest {
            profile,
            network,
            local_sockets,
            workspace,
            extra_roots,
            scratch,
        })
    }
}

#[test]
fn an_extra_root_is_written_and_protected_like_the_workspace() {
    let place = SandboxFixture::new();
    place.write("further/.git/config", "");
    place.write("further/.git/HEAD", "ref: refs/heads/main");
    place.write("further/.pixir/config.json", "{}");
    let sandbox = place.sandbox(|_| {});
    let extra_roots = [place.path("further")];
    let spec =
        place.spec_with_extra_roots(&sandbox, Profile::Workspace, false, &extra_roots).unwrap();
    assert!(spec.writable.contains(&place.path("further")), "{:?}", spec.writable);
    for kept in ["further/.pixir", "further/.git/config"] {
        assert!(spec.protected.contains(&place.path(kept)), "{kept}: {:?}", spec.protected);
    }
    let read_only =
        place.spec_with_extra_roots(&sandbox, Profile::ReadOnly, false, &extra_roots).unwrap();
    assert_eq!(read_only.writable, Vec::<PathBuf>::new());
    for root in ["/", "/etc", &place.path("home").to_string_lossy()] {
        assert!(sandbox.write_objection(Path::new(root)).is_some(), "{root}");
    }
    assert_eq!(sandbox.write_objection(&place.path("further")), None);
}

#[test]
fn a_spec_survives_the_command_line() {
    let place = SandboxFixture::new();
    place.write("work/.git/config", "");
    let mut spec = place.spec(&place.sandbox(|_| {}), Profile::Workspace, true).unwrap();
    spec.hidden.push(OsString::from("/odd \u{fffd}\nname").into());
    let read = SandboxSpec::from_arguments(spec.arguments().into_iter()).unwrap();
    assert_eq!(read, Some(spec));
    assert_eq!(SandboxSpec::from_arguments(std::iter::empty()).unwrap(), None);
    assert!(SandboxSpec::from_arguments(["x/what".into()].into_iter()).is_err());
}

#[test]
fn profiles_differ_in_what_can_be_written_and_reached() {
    let place = SandboxFixture::new();
    let sandbox = place.sandbox(|_| {});
    let own = place.spec(&sandbox, Profile::Workspace, false).unwrap();
    assert_eq!(own.writable, [place.path("work")]);
    assert!(own.caches.places.contains(&place.path("home/.cache")), "{:?}", own.caches);
    assert!(
        own.closed_homes.contains(&place.path("home")) && own.is_unseen(&place.path("home/.ssh"))
    );
    assert!(!own.is_unseen(&place.path("home/.cache/x")));
    assert!(own.hidden.contains(&place.path("home/.pixir")));
    assert_eq!((own.network, own.required), (Network::Closed, RequiredEnforcement::Partial));
    let read_only = place.spec(&sandbox, Profile::ReadOnly, true).unwrap();
    assert_eq!((read_only.writable.len(), read_only.network), (0, Network::Closed));
    assert_eq!(place.spec(&sandbox, Profile::Off, false), None);
    for (rule, declared, expected) in [
        (NetworkRule::Declare, true, Network::Open),
        (NetworkRule::Deny, true, Network::Closed),
        (NetworkRule::Allow, false, Network::Open),
    ] {
        let sandbox = place.sandbox(|config| config.sandbox.network = rule);
        let spec = place.spec(&sandbox, Profile::Workspace, declared).unwrap();
        assert_eq!(spec.network, expected, "{rule:?}");
    }
}

#[test]
fn a_virtual_environment_of_the_path_is_seen_whole() {
    let place = SandboxFixture::new();
    place.write("venv/pyvenv.cfg", "");
    place.write("venv/bin/pytest", "");
    place.write("tools/bin/x", "");
    let path =
        format!("{}:{}", place.path("venv/bin").display(), place.path("tools/bin").display());
    let environment = [("PATH".into(), path.into()), ("HOME".into(), place.path("home").into())];
    let sandbox = Sandbox::new(&Config::new(Home::new(place.path("home/.pixir"))), &environment);
    let spec = place.spec(&sandbox, Profile::Workspace, false).unwrap();
    let is_own =
        |path: &&PathBuf| path.starts_with(&place.root) && !path.starts_with(place.path("home"));
    let viewed: Vec<&PathBuf> = spec.viewed.iter().filter(is_own).collect();
    let expected = [place.path("tools/bin"), place.path("venv")];
    // Paths are viewed only if they are in a replaced temp folder.
    let is_replaced = super::mounts::is_replaced(&place.root);
    assert_eq!(viewed, expected.iter().filter(|_| is_replaced).collect::<Vec<_>>());
}

#[test]
fn folders_of_programs_and_settings_are_never_writable() {
    let place = SandboxFixture::new();
    let roots = ["~/.config/x", "~/.cargo", "~/bin", "~", "/", "/usr/local", "~/.pixir/x", "~/ok"];
    let sandbox = place.sandbox(|config| {
        config.sandbox.write = roots.iter().map(PathBuf::from).collect();
    });
    assert_eq!(sandbox.objections.len(), roots.len() - 1, "{:?}", sandbox.objections);
    fs::create_dir(place.path("home/ok")).unwrap();
    let spec = place.spec(&sandbox, Profile::Workspace, false).unwrap();
    assert_eq!(spec.writable, [place.path("work"), place.path("home/ok")]);
}

#[test]
fn a_repository_keeps_its_hooks_and_settings() {
    let place = SandboxFixture::new();
    place.write("work/.git/config", "");
    place.write("work/.git/hooks/x", "");
    place.write("work/.git/modules/a/b/HEAD", "");
    place.write("work/.git/modules/a/b/config", "");
    let found = repository_paths(&place.path("work"), None, &[], &NameCache::default());
    let git = place.path("work/.git");
    let named = |names: &[&str]| names.iter().map(|name| git.join(name)).collect::<Vec<_>>();
    let modules = ["modules", "modules/a", "modules/a/b"];
    assert_eq!(found.writable, [vec![git.clone()], named(&modules)].concat());
    assert_eq!(found.protected, named(&["config", "hooks", "modules/a/b/config"]));
    let own = ["config.worktree", "gitdir", "commondir"];
    assert_eq!(found.must_be_absent[..3], named(&own));
    assert!(
        found.must_be_absent.contains(&git.join("modules/a/b/hooks")),
        "{:?}",
        found.must_be_absent
    );
    fs::remove_dir_all(git.join("hooks")).unwrap();
    let bare = repository_paths(&place.path("work"), None, &[], &NameCache::default());
    assert!(bare.must_be_absent.contains(&git.join("hooks")), "missing hooks must not be created");
}

#[test]
fn a_git_file_is_believed_only_when_what_it_names_points_back() {
    let place = SandboxFixture::new();
    let dot_git = |to: &Path| place.write("work/.git", &format!("gitdir: {}\n", to.display()));
    let main = place.path("main/.git");
    let own = main.join("worktrees/tree");
    place.write("main/.git/config", "");
    place.write("main/.git/worktrees/tree/HEAD", "");
    place.write("main/.git/worktrees/tree/commondir", "../..\n");
    let back = |to: &str| place.write("main/.git/worktrees/tree/gitdir", to);
    dot_git(&own);
    back(&format!("{}\n", place.path("work/.git").display()));
    let found = repository_paths(&place.path("work"), None, &[], &NameCache::default());
    assert_eq!(found.writable, [main.clone(), main.join("worktrees"), own.clone()]);
    for kept in [place.path("work/.git"), main.join("config"), own.join("commondir")] {
        assert!(found.protected.contains(&kept), "{}", kept.display());
    }
    back("/elsewhere/.git\n");
    assert_eq!(
        repository_paths(&place.path("work"), None, &[], &NameCache::default()).writable,
        Vec::<PathBuf>::new()
    );
    // A repository that names the folder of another one, or a plain folder, makes nothing writable.
    for victim in [main, place.path("home"), place.path("missing")] {
        dot_git(&victim);
        assert_eq!(
            repository_paths(&place.path("work"), None, &[], &NameCache::default()).writable,
            Vec::<PathBuf>::new()
        );
    }
    // A submodule points back by its `core.worktree`.
    place.write("main/.git/modules/part/HEAD", "");
    place.write("main/.git/modules/part/config", "[core]\n\tworktree = ../../../../work\n");
    let module = place.path("main/.git/modules/part");
    dot_git(&module);
    assert_eq!(
        repository_paths(&place.path("work"), None, &[], &NameCache::default()).writable,
        [module]
    );
}

#[test]
fn what_a_command_changed_is_put_back() {
    let place = SandboxFixture::new();
    place.write("work/.git/config", "one");
    place.write("work/.git/hooks/pre-commit", "true");
    place.write("work/.pixir/config.json", "{}");
    place.write("work/.pixir/sessions/a.ndjson", "line 1\n");
    place.write("work/.pixir/sessions/b.ndjson", "line 1\n");
    let spec = place.spec(&place.sandbox(|_| {}), Profile::Workspace, false).unwrap();
    let mut guard = Guard::new(&place.path("scratch")).unwrap();
    guard.record_state(&spec).unwrap();
    assert_eq!(guard.restore_changes(), Vec::<PathBuf>::new());
    place.write("work/.git/config", "two");
    place.write("work/.git/hooks/post-commit", "evil");
    fs::remove_file(place.path("work/.git/hooks/pre-commit")).unwrap();
    symlink("/etc/passwd", place.path("work/.git/hooks/pre-commit")).unwrap();
    fs::remove_dir_all(place.path("work/.pixir/config.json").parent().unwrap()).unwrap();
    place.write("work/.pixir/sessions/a.ndjson", "line 1\nline 2\n");
    place.write("work/.pixir/sessions/b.ndjson", "forged\n");
    let changed = guard.restore_changes();
    let read = |name: &str| fs::read_to_string(place.path(name)).unwrap();
    assert_eq!(read("work/.git/config"), "one");
    assert_eq!(read("work/.git/hooks/pre-commit"), "true");
    assert!(!place.path("work/.git/hooks/post-commit").exists());
    assert_eq!(read("work/.pixir/config.json"), "{}");
    assert_eq!(read("work/.pixir/sessions/a.ndjson"), "line 1\nline 2\n", "it only grew");
    assert_eq!(read("work/.pixir/sessions/b.ndjson"), "line 1\n");
    assert!(changed.contains(&place.path("work/.git/hooks/post-commit")), "{changed:?}");
    guard.record_state(&spec).unwrap();
    assert_eq!(guard.restore_changes(), Vec::<PathBuf>::new());
    drop(place.folder);
}

#[test]
fn a_link_for_a_repository_and_a_bare_one_are_kept_as_well() {
    let place = SandboxFixture::new();
    place.write("work/repo/config", "");
    place.write("work/repo/hooks/x", "");
    symlink("repo", place.path("work/.git")).unwrap();
    let found = repository_paths(&place.path("work"), None, &[], &NameCache::default());
    let repo = place.path("work/repo");
    assert_eq!(found.writable, std::slice::from_ref(&repo));
    assert_eq!(found.protected, [repo.join("config"), repo.join("hooks")]);
    assert!(found.must_be_absent.contains(&repo.join("commondir")));
    place.write("elsewhere/config", "");
    fs::remove_file(place.path("work/.git")).unwrap();
    symlink("../elsewhere", place.path("work/.git")).unwrap();
    assert_eq!(
        repository_paths(&place.path("work"), None, &[], &NameCache::default()),
        RepositoryPaths::default(),
        "not writable at all"
    );
    fs::remove_file(place.path("work/.git")).unwrap();
    for name in ["HEAD", "objects/x", "refs/x", "config"] {
        place.write(&format!("work/{name}"), "");
    }
    let bare = repository_paths(&place.path("work"), None, &[], &NameCache::default());
    assert_eq!(bare.protected, [place.path("work/config")]);
    assert!(bare.must_be_absent.contains(&place.path("work/hooks")));
}

#[test]
fn what_one_command_changed_is_not_what_another_one_found() {
    let place = SandboxFixture::new();
    place.write("work/.git/config", "one");
    let spec = place.spec(&place.sandbox(|_| {}), Profile::Workspace, false).unwrap();
    let mut guard = Guard::new(&place.path("scratch")).unwrap();
    guard.record_state(&spec).unwrap();
    // The first command, in the background, changes the file; the second starts, and both end.
    place.write("work/.git/config", "evil");
    guard.record_state(&spec).unwrap();
    assert_eq!(guard.restore_changes(), [place.path("work/.git/config")]);
    assert_eq!(guard.restore_changes(), Vec::<PathBuf>::new());
    let read = || fs::read_to_string(place.path("work/.git/config")).unwrap();
    assert_eq!(read(), "one");
    // When no command runs, a change is the user's.
    place.write("work/.git/config", "two");
    guard.record_state(&spec).unwrap();
    assert_eq!((guard.restore_changes(), read().as_str()), (Vec::new(), "two"));
}

#[test]
fn unreadable_and_crowded_folders_are_restored() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let place = SandboxFixture::new();
    place.write("work/.git/hooks/x", "true");
    place.write("work/.pixir/sessions/a.ndjson", "line 1\n");
    let log = fs::metadata(place.path("work/.pixir/sessions/a.ndjson")).unwrap();
    let spec = place.spec(&place.sandbox(|_| {}), Profile::Workspace, false).unwrap();
    let mut guard = Guard::new(&place.path("scratch")).unwrap();
    guard.record_state(&spec).unwrap();
    for number in 0..200 {
        place.write(&format!("work/.git/hooks/crowd/{number}"), "evil");
    }
    place.write("work/.git/hooks/pre-commit", "evil");
    place.write("work/.pixir/sessions/a.ndjson", "forged\n");
    for name in ["work/.git/hooks/crowd", "work/.git/hooks", "work/.git"] {
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(0o0)).unwrap();
    }
    guard.restore_changes();
    let left: Vec<_> = fs::read_dir(place.path("work/.git/hooks")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let changed = fs::metadata(place.path("work/.pixir/sessions/a.ndjson")).unwrap();
    assert_eq!((changed.ino(), changed.len()), (log.ino(), 7), "open descriptors stay valid");
}

#[test]
fn scratch_is_private_and_goes_with_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    let place = SandboxFixture::new();
    let scratch = ScratchFolder::new(&place.path("work")).unwrap();
    let folder = scratch.path().to_owned();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join("tmp"))), (0o700, 0o700));
    fs::create_dir_all(folder.join("tmp/locked/in")).unwrap();
    fs::set_permissions(folder.join("tmp/locked"), fs::Permissions::from_mode(0o0)).unwrap();
    drop(scratch);
    assert!(!folder.exists());
}

#[test]
fn the_users_own_git_settings_are_kept_where_commands_can_write() {
    let place = SandboxFixture::new();
    let team = place.path("work/team.cfg");
    place.write("work/team.cfg", "[include]\n\tpath = none/more.cfg\n");
    place.write("work/dots/config", "");
    place.write("home/.gitconfig", &format!("[include]\n\tpath = {}\n", team.display()));
    fs::create_dir_all(place.path("config")).unwrap();
    symlink(place.path("work/dots"), place.path("config/git")).unwrap();
    let environment = [
        ("HOME".into(), place.path("home").into()),
        ("XDG_CONFIG_HOME".into(), place.path("config").into()),
    ];
    let sandbox = Sandbox::new(&Config::new(Home::new(place.path("home/.pixir"))), &environment);
    let spec = place.spec(&sandbox, Profile::Workspace, false).unwrap();
    assert_eq!(spec.protected, [place.path("work/dots/config"), place.path("work/team.cfg")]);
    assert!(
        spec.must_be_absent.contains(&place.path("work/none/more.cfg")),
        "{:?}",
        spec.must_be_absent
    );
    assert!(spec.writable.contains(&place.path("work/dots")), "{:?}", spec.writable);
    assert_eq!(spec.git_settings.len(), 3, "{:?}", spec.git_settings);
    assert_eq!(spec.git_settings[0], Path::new("/etc/gitconfig"));
    let other = place.spec(&place.sandbox(|_| {}), Profile::ReadOnly, false).unwrap();
    assert_eq!((other.protected, other.git_settings), (Vec::new(), Vec::new()));
}

#[test]
fn earlier_targets_of_credential_links_stay_hidden() {
    let place = SandboxFixture::new();
    for version in ["1", "2"] {
        place.write(&format!("home/data/{version}/netrc"), "");
    }
    symlink("1", place.path("home/data/now")).unwrap();
    symlink("now/netrc", place.path("home/data/link")).unwrap();
    symlink("data/link", place.path("home/.netrc")).unwrap();
    let sandbox = place.sandbox(|config| config.sandbox.read = vec!["~".into()]);
    let spec = || place.spec(&sandbox, Profile::Workspace, false).unwrap();
    let first = spec();
    let watch = sandbox.hidden_watch(&place.path("work"), &first);
    for name in ["home/.netrc", "home/data/link", "home/data/1/netrc"] {
        assert!(first.hidden.contains(&place.path(name)), "{name}: {:?}", first.hidden);
    }
    assert!(!first.hidden.contains(&place.path("home/data/now")), "other paths use it");
    assert_eq!(watch.revealed(), Vec::<PathBuf>::new());
    fs::remove_file(place.path("home/data/now")).unwrap();
    assert_eq!(watch.revealed(), Vec::<PathBuf>::new(), "it has no target");
    symlink("2", place.path("home/data/now")).unwrap();
    assert_eq!(watch.revealed(), [place.path("home/data/2/netrc")]);
    let second = spec();
    for name in ["home/data/1/netrc", "home/data/2/netrc"] {
        assert!(second.hidden.contains(&place.path(name)), "{name}: {:?}", second.hidden);
    }
    fs::remove_dir_all(place.path("home/data/1")).unwrap();
    assert!(!spec().hidden.contains(&place.path("home/data/1/netrc")), "it is gone");
    // A file that is created later is hidden by its name.
    place.write("home/.pgpass", "");
    assert_eq!(
        sandbox.hidden_watch(&place.path("work"), &second).revealed(),
        Vec::<PathBuf>::new()
    );
}

#[test]
fn a_home_shows_what_is_chosen_and_is_not_closed_where_programs_are() {
    let place = SandboxFixture::new();
    for name in ["home/tools/x/bin/x", "home/tools/x/lib/x", "home/plain/bin/x", "home/.gitconfig"]
    {
        place.write(name, "");
    }
    for name in ["home/mono/.git", "home/mono/part", "home/.dots/.git", "home/.dots/part"] {
        fs::create_dir_all(place.path(name)).unwrap();
    }
    let path = ["home/tools/x/bin", "home/plain/bin", "home"].map(|name| place.path(name));
    let path = std::env::join_paths(path).unwrap();
    let config = Config::new(Home::new(place.path("home/.pixir")));
    let spec = |home: &Path, workspace: &str| {
        let environment = [("HOME".into(), home.into()), ("PATH".into(), path.clone())];
        let sandbox = Sandbox::new(&config, &environment);
        let (workspace, scratch) = (&*place.path(workspace), &*place.path("scratch"));
        let (profile, network, local_sockets, extra_roots) =
            (Profile::Workspace, false, false, &[]);
        sandbox
            .spec(&SandboxRequest {
                profile,
                network,
                local_sockets,
                workspace,
                extra_roots,
                scratch,
            })
            .unwrap()
    };
    let closed = spec(&place.path("home"), "home/mono/part");
    assert!(closed.closed_homes.contains(&place.path("home")));
    for seen in ["mono/x", "mono/part/x", "tools/x/lib/x", "plain/bin/x", ".gitconfig", ".cache/x"]
    {
        assert!(!closed.is_unseen(&place.path("home").join(seen)), "{seen}");
    }
    for unseen in ["x", "tools/y", "plain/x", ".dots/x", ".ssh", ".pixir"] {
        assert!(closed.is_unseen(&place.path("home").join(unseen)), "{unseen}");
    }
    let dotted = spec(&place.path("home"), "home/.dots/part");
    assert!(dotted.is_unseen(&place.path("home/.dots/x")), "settings of every kind");
    let whole = spec(&place.path("home"), "home");
    assert!(!whole.closed_homes.contains(&place.path("home")));
    assert!(whole.hidden.contains(&place.path("home/.ssh")), "{:?}", whole.hidden);
    for home in ["/", "/usr", "/var", "/dev"] {
        assert!(!spec(Path::new(home), "work").closed_homes.contains(&home.into()), "{home}");
    }
}
