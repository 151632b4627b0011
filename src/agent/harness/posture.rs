//! Posture: mode, model, effort, role, sandbox and write bounds of a Session, from settings and
//! from its Log.

use super::{HarnessError, SettingsChange};
use crate::host::workspace::Workspace;
use crate::model::roles::RoleCatalog;
use crate::record::event::{
    Canonical, Extra, InitialPosture, LOG_VERSION, PermissionMode, PostureChanged, SessionFork,
    SessionStarted, SubagentEventKind,
};
use crate::record::history::History;
use crate::settings::bounds::{WriteBounds, WriteGlobs};
use crate::settings::config::Config;
use crate::settings::config::models::Model;
use crate::settings::role::{Role, stricter_mode};

/// The settings of a Session that its Log records.
#[derive(Debug, Clone, PartialEq)]
pub struct Posture {
    pub model: String,
    pub effort: Option<String>,
    pub mode: PermissionMode,
    pub role: &'static Role,
    /// The name of the sandbox profile; empty when the Log has none.
    sandbox: String,
    /// Sets of write globs, one per run that added any; all of them apply.
    writes: Vec<WriteGlobs>,
}

/// The posture of a resumed Session, and the change to be recorded.
pub struct ResumedPosture {
    pub posture: Posture,
    pub change: Option<PostureChanged>,
}

impl Posture {
    /// The posture of a new Session.
    pub fn new(config: &Config) -> Self {
        let role = config.role.unwrap_or(Role::build());
        Self {
            model: config.model.clone(),
            effort: config.effort.clone(),
            mode: role.limit_mode(&config.permission_mode),
            role,
            sandbox: config.sandbox.level.name().to_owned(),
            writes: Some(config.writes.clone())
                .filter(|globs| !globs.is_empty())
                .into_iter()
                .collect(),
        }
    }

    /// The posture at the end of a History; values that the Log lacks are empty. Roles from files are
    /// looked up by name, as they are now.
    pub fn from_history(history: &History, roles: &RoleCatalog) -> Self {
        let mut posture = Self {
            model: String::new(),
            effort: None,
            mode: PermissionMode::Auto,
            role: Role::build(),
            sandbox: String::new(),
            writes: Vec::new(),
        };
        for fact in history.facts() {
            match fact {
                Canonical::SessionStarted(SessionStarted { posture: started, .. }) => {
                    posture.model = started.model.clone().unwrap_or_default();
                    posture.effort.clone_from(&started.effort);
                    posture.mode = started.permission_mode.clone();
                    posture.role = roles.find_recorded(&started.role);
                    posture.sandbox.clone_from(&started.sandbox_mode);
                    posture.narrow(&started.allow_write, &started.deny_write);
                }
                Canonical::SessionFork(SessionFork { posture: fork, .. }) => {
                    posture.mode = fork.permission_mode.clone();
                    posture.role = roles.find_recorded(&fork.role);
                    posture.sandbox.clone_from(&fork.sandbox_mode);
                    posture.model = fork.model.clone().unwrap_or(posture.model);
                    posture.effort = fork.effort.clone().or(posture.effort);
                    posture.narrow(&fork.allow_write, &fork.deny_write);
                }
                Canonical::PostureChanged(changed) => posture.apply(changed, roles),
                Canonical::SubagentEvent(event)
                    if event.event == SubagentEventKind::PermissionPosture =>
                {
                    if let Some(mode) = event.permission_mode.as_deref() {
                        posture.mode = PermissionMode::from_text(mode);
                    }
                }
                _ => {}
            }
        }
        posture
    }

    fn apply(&mut self, changed: &PostureChanged, roles: &RoleCatalog) {
        if let Some(model) = &changed.model {
            self.model.clone_from(model);
        }
        if let Some(effort) = &changed.effort {
            self.effort = Some(effort.clone());
        }
        if let Some(mode) = &changed.permission_mode {
            self.mode = mode.clone();
        }
        if let Some(role) = &changed.role {
            self.role = roles.find_recorded(role);
        }
        if let Some(sandbox) = &changed.sandbox_mode {
            self.sandbox.clone_from(sandbox);
        }
        self.narrow(&changed.allow_write, &changed.deny_write);
    }

    fn narrow(&mut self, allow: &[String], deny: &[String]) {
        let globs = WriteGlobs { allow: allow.to_vec(), deny: deny.to_vec() };
        if !globs.is_empty() && !self.writes.contains(&globs) {
            self.writes.push(globs);
        }
    }

    /// The posture of a run that resumes the Session.
    ///
    /// The Session keeps its values unless the run names others. A mode that is not named is never
    /// laxer than the user's settings, or than the mode that the user chose for this Session: a Log can
    /// be planted. Write bounds only narrow.
    pub fn resume_with(&self, config: &Config, granted: Option<&PermissionMode>) -> ResumedPosture {
        let role = config.role.unwrap_or(self.role);
        // A mode that the old role forced ends with that role.
        let own = if role == self.role { &self.mode } else { &config.permission_mode };
        let wanted = if config.mode_named {
            config.permission_mode.clone()
        } else if granted == Some(own) {
            own.clone()
        } else {
            stricter_mode(own, &config.permission_mode)
        };
        let keeps_model = !config.model_named && !self.model.is_empty();
        let mut posture = Self {
            model: if keeps_model { self.model.clone() } else { config.model.clone() },
            effort: config.effort.clone().or_else(|| self.effort.clone()),
            mode: role.limit_mode(&wanted),
            role,
            // Never from the Log, which can be planted.
            sandbox: config.sandbox.level.name().to_owned(),
            writes: self.writes.clone(),
        };
        posture.narrow(&config.writes.allow, &config.writes.deny);
        let change = posture.changed_since(self);
        ResumedPosture { posture, change }
    }

    /// This posture with a change by the user.
    ///
    /// A mode that the role forced ends with the role, and an effort that the model does not support
    /// becomes the model's default.
    pub fn with_change(&self, change: &SettingsChange, models: &[Model]) -> Self {
        let role = change.role.map_or(self.role, Role::find_recorded);
        let wanted = change.mode.as_ref().unwrap_or(&self.mode);
        let name = change.model.as_ref().unwrap_or(&self.model);
        let known = models.iter().find(|model| model.name == *name);
        let known = known.cloned().unwrap_or_else(|| Model::from_name(name));
        let effort = change.effort.clone().or_else(|| self.effort.clone());
        let is_known = |effort: &String| known.efforts.is_empty() || known.efforts.contains(effort);
        let effort = effort.map(|effort| {
            let fallback = known.default_effort.clone().filter(|_| !is_known(&effort));
            fallback.unwrap_or(effort)
        });
        let (model, mode) = (name.clone(), role.limit_mode(wanted));
        let (sandbox, writes) = (self.sandbox.clone(), self.writes.clone());
        Self { model, effort, mode, role, sandbox, writes }
    }

    /// The change since `before` to be recorded, if there is one.
    pub fn changed_since(&self, before: &Self) -> Option<PostureChanged> {
        (self != before).then(|| self.change_from(before))
    }

    fn change_from(&self, before: &Self) -> PostureChanged {
        let added = self.writes.get(before.writes.len()..).unwrap_or_default().first();
        let added = added.cloned().unwrap_or_default();
        PostureChanged {
            permission_mode: (self.mode != before.mode).then(|| self.mode.clone()),
            model: (self.model != before.model).then(|| self.model.clone()),
            effort: if self.effort == before.effort { None } else { self.effort.clone() },
            role: (self.role != before.role).then(|| self.role.name.to_owned()),
            sandbox_mode: (self.sandbox != before.sandbox).then(|| self.sandbox.clone()),
            allow_write: added.allow,
            deny_write: added.deny,
            extra: Extra::new(),
        }
    }

    /// Write bounds of its tools. A bound of the Log that cannot be used refuses the Session: without
    /// it, the Session could write more.
    pub fn bounds(&self) -> Result<WriteBounds, HarnessError> {
        let mut bounds = WriteBounds::none();
        for globs in &self.writes {
            bounds.add_globs(globs).map_err(HarnessError::Bounds)?;
        }
        Ok(bounds)
    }

    /// The first Event of a new Log.
    pub fn first_event(&self, workspace: &Workspace) -> SessionStarted {
        let globs = self.writes.first().cloned().unwrap_or_default();
        let posture = InitialPosture {
            pixir_version: env!("CARGO_PKG_VERSION").to_owned(),
            log_version: LOG_VERSION,
            workspace: workspace.root().to_string_lossy().into_owned(),
            role: self.role.name.to_owned(),
            permission_mode: self.mode.clone(),
            sandbox_mode: self.sandbox.clone(),
            model: Some(self.model.clone()),
            effort: self.effort.clone(),
            allow_write: globs.allow,
            deny_write: globs.deny,
        };
        SessionStarted { posture, parent_session_id: None, subagent_id: None, extra: Extra::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::paths::Home;

    fn config() -> Config {
        Config::new(Home::new("/nowhere"))
    }

    fn stored(mode: PermissionMode, role: &str) -> Posture {
        let mut config = config();
        config.permission_mode = mode;
        config.role = Role::find(role);
        Posture::new(&config)
    }

    #[test]
    fn a_session_keeps_its_mode_unless_a_run_names_another() {
        let auto = PermissionMode::Auto;
        let asking = stored(PermissionMode::Ask, "build");
        let kept = asking.resume_with(&config(), None);
        assert_eq!((kept.posture.mode, kept.change), (PermissionMode::Ask, None));
        let mut named = config();
        named.mode_named = true;
        let change = asking.resume_with(&named, None).change.unwrap();
        assert_eq!(change.permission_mode, Some(auto.clone()));
        let mut strict = config();
        strict.permission_mode = PermissionMode::ReadOnly;
        let lax = stored(auto, "build").resume_with(&strict, None);
        assert_eq!(lax.posture.mode, PermissionMode::ReadOnly, "a planted Log does not widen");
        let session = stored(PermissionMode::Auto, "build");
        let chosen = session.resume_with(&strict, Some(&PermissionMode::Auto));
        assert_eq!((chosen.posture.mode, chosen.change), (PermissionMode::Auto, None));
        let other = session.resume_with(&strict, Some(&PermissionMode::Ask));
        assert_eq!(
            other.posture.mode,
            PermissionMode::ReadOnly,
            "what was chosen is something else"
        );
    }

    #[test]
    fn another_sandbox_is_recorded_and_never_taken_from_a_log() {
        let held = stored(PermissionMode::Auto, "build");
        let mut open = config();
        open.sandbox.level = crate::settings::config::SandboxLevel::Off;
        let loosened = held.resume_with(&open, None);
        assert_eq!(loosened.change.unwrap().sandbox_mode.as_deref(), Some("off"));
        let again = loosened.posture.resume_with(&open, None);
        assert!(again.change.is_none(), "what holds already is no news");
        let back = loosened.posture.resume_with(&config(), None);
        assert_eq!(back.change.unwrap().sandbox_mode.as_deref(), Some("workspace"));
    }

    #[test]
    fn a_role_takes_its_mode_along_and_leaves_with_it() {
        let planning = stored(PermissionMode::Auto, "plan");
        assert_eq!(planning.mode, PermissionMode::ReadOnly);
        assert!(planning.resume_with(&config(), None).change.is_none());
        let mut building = config();
        building.role = Role::find("build");
        let change = planning.resume_with(&building, None).change.unwrap();
        assert_eq!(change.role.as_deref(), Some("build"));
        assert_eq!(change.permission_mode, Some(PermissionMode::Auto));
        let mut lax = config();
        lax.mode_named = true;
        assert_eq!(planning.resume_with(&lax, None).posture.mode, PermissionMode::ReadOnly);
    }

    #[test]
    fn a_change_names_what_differs_and_an_effort_fits_its_model() {
        let models = [
            Model::from_name("gpt-5.5"),
            Model::from_name("gpt-6-sol"),
            Model::from_name("llama-9"),
        ];
        let before = stored(PermissionMode::Ask, "build");
        let plan = SettingsChange { role: Some("plan"), ..SettingsChange::default() };
        let planning = before.with_change(&plan, &models);
        assert_eq!((planning.role.name, &planning.mode), ("plan", &PermissionMode::ReadOnly));
        let back = SettingsChange {
            role: Some("build"),
            mode: Some(PermissionMode::Auto),
            ..SettingsChange::default()
        };
        let fact = planning.with_change(&back, &models).changed_since(&planning).unwrap();
        assert_eq!(fact.permission_mode, Some(PermissionMode::Auto));
        assert_eq!(fact.role.as_deref(), Some("build"));
        let lax = SettingsChange { mode: Some(PermissionMode::Auto), ..SettingsChange::default() };
        assert_eq!(planning.with_change(&lax, &models).mode, PermissionMode::ReadOnly);
        let hard = SettingsChange {
            model: Some("gpt-6-sol".into()),
            effort: Some("ultra".into()),
            ..SettingsChange::default()
        };
        let thinking = before.with_change(&hard, &models);
        assert_eq!(thinking.effort.as_deref(), Some("ultra"));
        for (model, effort) in [("gpt-5.5", "medium"), ("llama-9", "ultra")] {
            let other = SettingsChange { model: Some(model.into()), ..SettingsChange::default() };
            assert_eq!(thinking.with_change(&other, &models).effort.as_deref(), Some(effort));
        }
        assert_eq!(
            before.with_change(&SettingsChange::default(), &models).changed_since(&before),
            None
        );
    }

    #[test]
    fn write_bounds_only_narrow() {
        let mut config = config();
        config.writes = WriteGlobs { allow: vec!["src/**".into()], deny: Vec::new() };
        let first = Posture::new(&config);
        assert!(first.resume_with(&config, None).change.is_none(), "what holds already is no news");
        config.writes = WriteGlobs { allow: vec!["**".into()], deny: vec!["src/x".into()] };
        let second = first.resume_with(&config, None);
        let change = second.change.unwrap();
        assert_eq!(
            (change.allow_write, change.deny_write),
            (vec!["**".into()], vec!["src/x".into()])
        );
        let bounds = second.posture.bounds().unwrap();
        let allows = |path: &str| bounds.allows(std::path::Path::new(path));
        assert!(allows("src/a") && !allows("a") && !allows("src/x"));
    }
}
