//! Session options for the client: mode, model and effort.
//!
//! The mode is sent twice, as a mode and as an option, because clients use one or the other; both are
//! always sent together.

use agent_client_protocol_schema::v1::{
    ConfigOptionUpdate, CurrentModeUpdate, SessionConfigOption, SessionConfigOptionCategory,
    SessionConfigSelectOption, SessionMode, SessionModeState, SessionUpdate,
};
use serde_json::Value;

use crate::agent::conversation::Conversation;
use crate::agent::harness::Change;
use crate::host::rpc::Fault;
use crate::record::event::PermissionMode;
use crate::settings::config::models::Model;

/// A mode that can be chosen: a permission mode, with the role for it.
struct Mode {
    id: &'static str,
    name: &'static str,
    words: &'static str,
    role: &'static str,
    permission: PermissionMode,
}

const MODES: &[Mode] = &[
    Mode {
        id: "ask",
        name: "Ask",
        words: "Asks before changing anything",
        role: "build",
        permission: PermissionMode::Ask,
    },
    Mode {
        id: "auto",
        name: "Auto",
        words: "Works without asking: commands in the sandbox, MCP servers outside it",
        role: "build",
        permission: PermissionMode::Auto,
    },
    Mode {
        id: "read_only",
        name: "Read only",
        words: "Reads without changing anything",
        role: "build",
        permission: PermissionMode::ReadOnly,
    },
    Mode {
        id: PLAN,
        name: "Plan",
        words: "Reads, and answers with a plan",
        role: PLAN,
        permission: PermissionMode::ReadOnly,
    },
];

/// The role that clients see as a mode.
const PLAN: &str = "plan";

const MODE: &str = "mode";
const MODEL: &str = "model";
const EFFORT: &str = "thought_level";

/// A request to change a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// `session/set_mode`.
    Mode(String),
    /// `session/set_model`, an older form.
    Model(String),
    /// `session/set_config_option`.
    Option { id: String, value: String },
}

impl Wish {
    /// Reads the parameters of `session/set_mode`.
    pub fn mode(params: &Value) -> Result<Self, Fault> {
        text(params, "modeId").map(Wish::Mode)
    }

    /// Reads the parameters of `session/set_model`.
    pub fn model(params: &Value) -> Result<Self, Fault> {
        text(params, "modelId").map(Wish::Model)
    }

    /// Reads the parameters of `session/set_config_option`.
    pub fn option(params: &Value) -> Result<Self, Fault> {
        Ok(Wish::Option { id: text(params, "configId")?, value: text(params, "value")? })
    }

    /// The change, if its option and value exist.
    pub fn change(&self, current: &Conversation, models: &[Model]) -> Result<Change, Fault> {
        let (id, value) = match self {
            Wish::Mode(value) => (MODE, value),
            Wish::Model(value) => (MODEL, value),
            Wish::Option { id, value } => (id.as_str(), value),
        };
        match id {
            MODE => mode_change(value),
            MODEL => {
                let is_known =
                    value == current.model() || models.iter().any(|model| model.name == *value);
                if !is_known {
                    return Err(unknown("model", value));
                }
                Ok(Change { model: Some(value.clone()), ..Change::default() })
            }
            EFFORT => {
                if !efforts(&model_of(current.model(), models)).contains(value) {
                    return Err(unknown("effort of this model", value));
                }
                Ok(Change { effort: Some(value.clone()), ..Change::default() })
            }
            _ => Err(unknown("option", id)),
        }
    }
}

/// The change that selects a mode.
pub fn mode_change(id: &str) -> Result<Change, Fault> {
    let mode = MODES.iter().find(|mode| mode.id == id).ok_or_else(|| unknown("mode", id))?;
    Ok(Change { mode: Some(mode.permission.clone()), role: Some(mode.role), ..Change::default() })
}

fn text(params: &Value, name: &str) -> Result<String, Fault> {
    let text = params.get(name).and_then(Value::as_str).map(str::to_owned);
    text.ok_or_else(|| Fault::invalid_params(format!("`{name}` must be a text")))
}

fn unknown(what: &str, name: &str) -> Fault {
    let shown: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
    Fault::invalid_params(format!("there is no {what} `{shown}`"))
}

/// The current mode of a Session.
pub fn current_mode(conversation: &Conversation) -> &'static str {
    if conversation.role() == PLAN {
        return PLAN;
    }
    match conversation.mode() {
        PermissionMode::Ask => "ask",
        PermissionMode::Auto => "auto",
        PermissionMode::ReadOnly | PermissionMode::Other(_) => "read_only",
    }
}

/// The modes, for clients without options.
pub fn modes(conversation: &Conversation) -> SessionModeState {
    let mode =
        |mode: &Mode| SessionMode::new(mode.id, mode.name).description(mode.words.to_owned());
    SessionModeState::new(current_mode(conversation), MODES.iter().map(mode).collect())
}

/// All options, the most important first.
pub fn options(conversation: &Conversation, models: &[Model]) -> Vec<SessionConfigOption> {
    let choice = |value: &str| SessionConfigSelectOption::new(value.to_owned(), value.to_owned());
    let stances: Vec<SessionConfigSelectOption> = MODES
        .iter()
        .map(|mode| {
            SessionConfigSelectOption::new(mode.id, mode.name).description(mode.words.to_owned())
        })
        .collect();
    let mode = SessionConfigOption::select(MODE, "Mode", current_mode(conversation), stances)
        .description("What Pixir may do without asking".to_owned())
        .category(SessionConfigOptionCategory::Mode);
    let current = model_of(conversation.model(), models);
    let mut names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    if !names.contains(&current.name.as_str()) {
        names.insert(0, &current.name);
    }
    let names: Vec<_> = names.into_iter().map(choice).collect();
    let model = SessionConfigOption::select(MODEL, "Model", current.name.clone(), names)
        .category(SessionConfigOptionCategory::Model);
    let mut options = vec![mode, model];
    let efforts = efforts(&current);
    let effort =
        conversation.effort().map(str::to_owned).or_else(|| current.default_effort.clone());
    if let Some(effort) = effort.or_else(|| efforts.first().cloned()) {
        let mut levels: Vec<_> = efforts.iter().map(|level| choice(level)).collect();
        if !efforts.contains(&effort) {
            levels.insert(0, choice(&effort));
        }
        let option = SessionConfigOption::select(EFFORT, "Thinking", effort, levels)
            .description("Reasoning effort of the model".to_owned())
            .category(SessionConfigOptionCategory::ThoughtLevel);
        options.push(option);
    }
    options
}

/// The updates after a change of settings.
pub fn updates(conversation: &Conversation, models: &[Model]) -> [SessionUpdate; 2] {
    [
        SessionUpdate::CurrentModeUpdate(CurrentModeUpdate::new(current_mode(conversation))),
        SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(options(conversation, models))),
    ]
}

/// The known facts about a model, or defaults for an unknown one.
pub fn model_of(name: &str, models: &[Model]) -> Model {
    let known = models.iter().find(|model| model.name == name).cloned();
    known.unwrap_or_else(|| Model::named(name))
}

fn efforts(model: &Model) -> Vec<String> {
    model.efforts.clone()
}
