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
use crate::agent::harness::SettingsChange;
use crate::frontends::commands::{MODES, ModeOption, mode_name};
use crate::host::rpc::RpcError;
use crate::settings::config::models::Model;

const MODE_OPTION: &str = "mode";
const MODEL_OPTION: &str = "model";
const EFFORT_OPTION: &str = "thought_level";

/// A request to change a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingRequest {
    /// `session/set_mode`.
    Mode(String),
    /// `session/set_model`, an older form.
    Model(String),
    /// `session/set_config_option`.
    Option { id: String, value: String },
}

impl SettingRequest {
    /// Reads the parameters of `session/set_mode`.
    pub fn read_mode(params: &Value) -> Result<Self, RpcError> {
        text_parameter(params, "modeId").map(SettingRequest::Mode)
    }

    /// Reads the parameters of `session/set_model`.
    pub fn read_model(params: &Value) -> Result<Self, RpcError> {
        text_parameter(params, "modelId").map(SettingRequest::Model)
    }

    /// Reads the parameters of `session/set_config_option`.
    pub fn read_option(params: &Value) -> Result<Self, RpcError> {
        Ok(SettingRequest::Option {
            id: text_parameter(params, "configId")?,
            value: text_parameter(params, "value")?,
        })
    }

    /// The change, if its option and value exist.
    pub fn to_change(
        &self,
        current: &Conversation,
        models: &[Model],
    ) -> Result<SettingsChange, RpcError> {
        let (id, value) = match self {
            SettingRequest::Mode(value) => (MODE_OPTION, value),
            SettingRequest::Model(value) => (MODEL_OPTION, value),
            SettingRequest::Option { id, value } => (id.as_str(), value),
        };
        match id {
            MODE_OPTION => mode_change(value),
            MODEL_OPTION => {
                let is_known =
                    value == current.model() || models.iter().any(|model| model.name == *value);
                if !is_known {
                    return Err(unknown_choice("model", value));
                }
                Ok(SettingsChange { model: Some(value.clone()), ..SettingsChange::default() })
            }
            EFFORT_OPTION => {
                if !efforts(&find_model(current.model(), models)).contains(value) {
                    return Err(unknown_choice("effort of this model", value));
                }
                Ok(SettingsChange { effort: Some(value.clone()), ..SettingsChange::default() })
            }
            _ => Err(unknown_choice("option", id)),
        }
    }
}

/// The change that selects a mode.
pub fn mode_change(id: &str) -> Result<SettingsChange, RpcError> {
    let mode = MODES.iter().find(|mode| mode.id == id).ok_or_else(|| unknown_choice("mode", id))?;
    Ok(mode.to_change())
}

fn text_parameter(params: &Value, name: &str) -> Result<String, RpcError> {
    let text = params.get(name).and_then(Value::as_str).map(str::to_owned);
    text.ok_or_else(|| RpcError::invalid_params(format!("`{name}` must be a text")))
}

fn unknown_choice(what: &str, name: &str) -> RpcError {
    let shown: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
    RpcError::invalid_params(format!("there is no {what} `{shown}`"))
}

/// The modes, for clients without options.
pub fn session_modes(conversation: &Conversation) -> SessionModeState {
    let mode = |mode: &ModeOption| {
        SessionMode::new(mode.id, mode.name).description(mode.description.to_owned())
    };
    SessionModeState::new(mode_name(conversation), MODES.iter().map(mode).collect())
}

/// All options, the most important first.
pub fn session_options(conversation: &Conversation, models: &[Model]) -> Vec<SessionConfigOption> {
    let choice = |value: &str| SessionConfigSelectOption::new(value.to_owned(), value.to_owned());
    let mode_choices: Vec<SessionConfigSelectOption> = MODES
        .iter()
        .map(|mode| {
            SessionConfigSelectOption::new(mode.id, mode.name)
                .description(mode.description.to_owned())
        })
        .collect();
    let mode =
        SessionConfigOption::select(MODE_OPTION, "Mode", mode_name(conversation), mode_choices)
            .description("What Pixir may do without asking".to_owned())
            .category(SessionConfigOptionCategory::Mode);
    let current = find_model(conversation.model(), models);
    let mut names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    if !names.contains(&current.name.as_str()) {
        names.insert(0, &current.name);
    }
    let names: Vec<_> = names.into_iter().map(choice).collect();
    let model = SessionConfigOption::select(MODEL_OPTION, "Model", current.name.clone(), names)
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
        let option = SessionConfigOption::select(EFFORT_OPTION, "Thinking", effort, levels)
            .description("Reasoning effort of the model".to_owned())
            .category(SessionConfigOptionCategory::ThoughtLevel);
        options.push(option);
    }
    options
}

/// The updates after a change of settings.
pub fn setting_updates(conversation: &Conversation, models: &[Model]) -> [SessionUpdate; 2] {
    [
        SessionUpdate::CurrentModeUpdate(CurrentModeUpdate::new(mode_name(conversation))),
        SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(session_options(
            conversation,
            models,
        ))),
    ]
}

/// The known facts about a model, or defaults for an unknown one.
pub fn find_model(name: &str, models: &[Model]) -> Model {
    let known = models.iter().find(|model| model.name == name).cloned();
    known.unwrap_or_else(|| Model::from_name(name))
}

fn efforts(model: &Model) -> Vec<String> {
    model.efforts.clone()
}
