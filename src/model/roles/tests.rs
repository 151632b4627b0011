//! Tests of role files on a real disk: chosen, shadowed, refused, and reported with their lines.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::base::paths::Home;
use crate::record::event::PermissionMode;

struct RolesFixture(tempfile::TempDir);

impl RolesFixture {
    fn new() -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(fixture.at("repo/.git")).unwrap();
        fixture
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(path)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn role(&self, path: &str, name: &str, more: &str) -> PathBuf {
        let text = format!(
            "name = \"{name}\"\ndescription = \"about # {path}\"\ndeveloper_instructions = \"\"\"\nBe {path}.\n\"\"\"\n{more}\n"
        );
        self.write(path, text)
    }

    fn catalog(&self) -> RoleCatalog {
        RoleCatalog::new(&DiscoveryFolders {
            workspace: self.at("repo"),
            user: Some(self.at("user")),
            home: Home::new(self.at("home")),
        })
    }

    fn trust(&self, path: &Path) {
        let digest = crate::base::id::sha256(&fs::read(path).unwrap());
        TrustStore::new(&Home::new(self.at("home"))).record_decision(path, &digest, true).unwrap();
    }
}

impl RoleCatalog {
    /// A catalog with only the built-in roles.
    pub fn none() -> Self {
        let home = Home::new("/nowhere");
        Self { roots: Vec::new(), trust: TrustStore::new(&home) }
    }
}

#[test]
fn a_role_of_a_file_is_honoured_in_full() {
    let fixture = RolesFixture::new();
    fixture.role(
        "home/agents/scribe.toml",
        "scribe",
        "model = \"m-9\"\nmodel_reasoning_effort = \"high\"\nsandbox_mode = \"read-only\"\n\
         tools = [\"read\"]\nnickname = \"x\"",
    );
    let catalog = fixture.catalog();
    let scribe = catalog.find("scribe").unwrap();
    assert_eq!(scribe.instructions, "Be home/agents/scribe.toml.");
    assert_eq!(scribe.limit_mode(&PermissionMode::Auto), PermissionMode::ReadOnly);
    assert!(scribe.may_use("read") && !scribe.may_use("grep"));
    let custom = scribe.custom.as_ref().unwrap();
    assert_eq!(custom.description, "about # home/agents/scribe.toml");
    assert_eq!((custom.model.as_deref(), custom.effort.as_deref()), (Some("m-9"), Some("high")));
    assert!(std::ptr::eq(scribe, catalog.find_recorded("scribe")));
    assert_eq!(
        catalog.find_recorded("gone").limit_mode(&PermissionMode::Auto),
        PermissionMode::ReadOnly
    );
    assert_eq!(catalog.find_recorded("plan").name, "plan");
    let odd = &catalog.read_all().entries[0].warnings;
    assert!(odd[0].message.contains("unknown key `nickname`"), "{odd:?}");
}

#[test]
fn a_project_is_trusted_first_and_never_replaces_what_is_built_in() {
    let fixture = RolesFixture::new();
    let own = fixture.role("repo/.pixir/agents/a.toml", "scribe", "");
    fixture.role("repo/.codex/agents/plan.toml", "plan", "");
    fixture.role("user/.codex/agents/plan.toml", "plan", "");
    let catalog = fixture.catalog();
    assert!(matches!(catalog.find("scribe"), Err(RoleError::Untrusted { .. })));
    assert_eq!(catalog.find("plan").unwrap().instructions, "Be user/.codex/agents/plan.toml.");
    assert!(catalog.read_all().broken[0].message.contains("cannot replace"));
    fixture.role("user/.codex/agents/scribe.toml", "scribe", "");
    assert!(catalog.find("scribe").unwrap().instructions.contains("user/"), "no stranger first");
    fixture.trust(&own);
    assert!(catalog.find("scribe").unwrap().instructions.contains("repo/"));
    assert_eq!(catalog.read_all().shadowed.len(), 1);
}

#[test]
fn broken_files_are_reported_with_their_line() {
    let fixture = RolesFixture::new();
    let good = "name = \"x\"\ndescription = \"d\"\ndeveloper_instructions = \"i\"\n";
    for (name, text, line) in [
        ("a", b"name = \"a\"\ndescription = \n".to_vec(), Some(2)),
        ("b", format!("{good}sandbox_mode = \"none\"\n").into_bytes(), Some(4)),
        ("c", format!("{good}permission_mode = \"yolo\"\n").into_bytes(), Some(4)),
        ("d", format!("{good}model = \"two words\"\n").into_bytes(), Some(4)),
        ("e", good.replace("\"x\"", "\"../x\"").into_bytes(), Some(1)),
        ("f", b"name = \"f\"\n\xff\n".to_vec(), Some(2)),
        ("g", good.replace("\"i\"", "\" \"").into_bytes(), Some(3)),
        ("h", vec![b'#'; 70_000], None),
        ("i", format!("{good}tools = \"read\"\n").into_bytes(), Some(4)),
    ] {
        let path = fixture.write(&format!("home/agents/{name}.toml"), text);
        let listed = fixture.catalog().read_all();
        assert_eq!(listed.broken.len(), 1, "{name}: {listed:?}");
        assert_eq!((&listed.broken[0].path, listed.broken[0].line), (&path, line), "{name}");
        fs::remove_file(path).unwrap();
    }
    fixture.write("home/agents/missing.toml", "name = \"missing\"\n");
    let catalog = fixture.catalog();
    let Err(error @ RoleError::Broken { .. }) = catalog.find("missing") else { panic!("broken") };
    assert!(error.to_string().contains("description"), "{error}");
    let Err(RoleError::Unknown { known, .. }) = catalog.find("absent") else { panic!("unknown") };
    assert!(known.contains(&"build".to_owned()));
}

#[test]
fn a_file_of_the_users_stands_in_for_a_role_of_this_build_also_when_a_log_names_it() {
    let fixture = RolesFixture::new();
    let own = fixture.role("home/agents/worker.toml", "worker", "tools = [\"read\"]");
    let catalog = fixture.catalog();
    let worker = catalog.find("worker").unwrap();
    assert!(worker.may_use("read") && !worker.may_use("bash"));
    assert!(std::ptr::eq(worker, catalog.find_recorded("worker")), "a resume does not widen");
    let Err(RoleError::Unknown { known, .. }) = catalog.find("missing") else { panic!("unknown") };
    assert_eq!(known.iter().filter(|name| *name == "worker").count(), 1, "{known:?}");
    // An error in the file is reported instead of using the wider built-in role.
    fs::write(&own, "name = \"worker\"\ntools = [\n").unwrap();
    assert!(matches!(catalog.find("worker"), Err(RoleError::Broken { .. })));
    assert!(std::ptr::eq(catalog.find_recorded("worker"), Role::unknown()));
    fs::remove_file(own).unwrap();
    // An error in a file of the project has no effect.
    fixture.write("repo/.pixir/agents/worker.toml", "name = \n");
    assert!(std::ptr::eq(catalog.find("worker").unwrap(), Role::find("worker").unwrap()));
}
