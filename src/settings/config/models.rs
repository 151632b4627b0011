//! The models table: context windows, efforts, and the defaults for unknown models.
//!
//! A small built-in table, overridden by the last listing of a Provider's models endpoint. Listings are cached in the
//! user's folder; the cache can be deleted at any time.

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::base::files::{StateDir, WriteDurability};
use crate::base::paths::Home;

/// The context window assumed for an unknown model; small on purpose.
pub const UNKNOWN_WINDOW: u64 = 128_000;

/// The largest cache that is read, in bytes.
const MAX_CACHE_BYTES: u64 = 4 * 1024 * 1024;

/// The most models of a listing that are read.
const MAX_MODELS: usize = 2_000;

const TO_XHIGH: &[&str] = &["low", "medium", "high", "xhigh"];
const TO_MAX: &[&str] = &["low", "medium", "high", "xhigh", "max"];
const TO_ULTRA: &[&str] = &["low", "medium", "high", "xhigh", "max", "ultra"];

const MODELS: &[(&str, u64, &[&str], &str)] = &[
    ("gpt-5.5", 272_000, TO_XHIGH, "medium"),
    ("gpt-5.6-luna", 272_000, TO_MAX, "medium"),
    ("gpt-5.6-sol", 272_000, TO_ULTRA, "low"),
    ("gpt-5.6-terra", 272_000, TO_ULTRA, "medium"),
    ("gpt-6-astra", 272_000, TO_ULTRA, "low"),
    ("gpt-6-luna", 272_000, TO_MAX, "medium"),
    ("gpt-6-sol", 272_000, TO_ULTRA, "medium"),
    ("gpt-6.1-sol", 272_000, TO_ULTRA, "low"),
    ("gpt-6.1-terra", 500_000, TO_ULTRA, "low"),
];

/// A model's properties, as published in JSON and stored in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Model {
    pub name: String,
    /// The context window in tokens; `None` when unknown.
    #[serde(default)]
    pub context_window: Option<u64>,
    /// The reasoning efforts that the model accepts; empty when unknown.
    #[serde(default)]
    pub efforts: Vec<String>,
    /// The reasoning effort when a request names none.
    #[serde(default)]
    pub default_effort: Option<String>,
    /// Whether the model accepts images; `None` when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<bool>,
}

impl Model {
    /// The model of this name from the built-in table, or one with unknown properties.
    pub fn from_name(name: &str) -> Self {
        built_in()
            .find(|model| model.name == name)
            .unwrap_or_else(|| Self { name: name.to_owned(), ..Self::default() })
    }

    /// The context window to assume, in tokens.
    pub fn window(&self) -> u64 {
        self.context_window.unwrap_or(UNKNOWN_WINDOW)
    }

    /// Parses one entry of a models endpoint: a full one, or the bare id that other servers list.
    fn from_listing(entry: &Value) -> Option<Self> {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
        let name = text("slug").or_else(|| text("id"))?;
        if name.is_empty() || name.len() > 200 || text("visibility").as_deref() == Some("hide") {
            return None;
        }
        let mut model = Self::from_name(&name);
        model.context_window = parse_window(entry).or(model.context_window);
        let levels = entry.get("supported_reasoning_levels").and_then(Value::as_array);
        let efforts: Vec<String> = levels
            .into_iter()
            .flatten()
            .filter_map(|level| level.get("effort").and_then(Value::as_str).or(level.as_str()))
            .map(str::to_owned)
            .collect();
        if !efforts.is_empty() {
            model.efforts = efforts;
        }
        model.default_effort = text("default_reasoning_level").or(model.default_effort);
        let inputs = entry.get("input_modalities");
        let inputs = inputs.or_else(|| entry.pointer("/architecture/input_modalities"));
        let inputs = inputs.and_then(Value::as_array);
        model.images =
            inputs.map(|inputs| inputs.iter().any(|name| name == "image")).or(model.images);
        Some(model)
    }
}

/// The fields in which servers list the context window: those of OpenAI and Groq, Anthropic and `LiteLLM`, vLLM,
/// `OpenRouter` and Together, Mistral, LM Studio.
const WINDOW_FIELDS: [&str; 7] = [
    "/context_window",
    "/max_input_tokens",
    "/max_model_len",
    "/context_length",
    "/top_provider/context_length",
    "/max_context_length",
    "/loaded_context_length",
];

/// The context window in an entry of a models endpoint; the smallest of several, because some servers list the
/// model's maximum in addition to their own limit.
fn parse_window(entry: &Value) -> Option<u64> {
    let named = WINDOW_FIELDS.iter().filter_map(|field| entry.pointer(field)?.as_u64());
    named.filter(|window| *window > 0).min()
}

/// The built-in table, by name.
pub fn built_in() -> impl Iterator<Item = Model> {
    MODELS.iter().map(|(name, window, efforts, default)| Model {
        name: (*name).to_owned(),
        context_window: Some(*window),
        efforts: efforts.iter().map(|effort| (*effort).to_owned()).collect(),
        default_effort: Some((*default).to_owned()),
        images: Some(true),
    })
}

/// Parses the answer of a models endpoint: `{"models": […]}` or `{"data": […]}`.
pub fn parse_listing(answer: &Value) -> Option<Vec<Model>> {
    let list = answer.get("models").or_else(|| answer.get("data"))?.as_array()?;
    Some(list.iter().filter_map(Model::from_listing).take(MAX_MODELS).collect())
}

/// The last listing of a models endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelListing {
    /// The time of the listing, in seconds since the epoch.
    pub fetched_at: i64,
    pub models: Vec<Model>,
}

/// The cached listing of an endpoint; a missing or broken cache counts as empty.
pub fn read_cached_listing(home: &Home, base_url: &str) -> Option<ModelListing> {
    let mut cache = read_cache(home);
    serde_json::from_value(cache.get_mut(base_url)?.take()).ok()
}

/// Stores the listing of an endpoint in the cache.
pub fn cache_listing(home: &Home, base_url: &str, listing: &ModelListing) -> std::io::Result<()> {
    let mut endpoints = read_cache(home);
    endpoints[base_url] = serde_json::to_value(listing)?;
    let text = json!({ "version": 1, "endpoints": endpoints }).to_string();
    let folder = StateDir::create_root(home.path())?;
    Ok(folder.replace(Home::MODELS, text.as_bytes(), WriteDurability::Lazy)?)
}

/// A model at an endpoint; its properties are looked up lazily.
#[derive(Debug, Clone)]
struct EndpointModel {
    home: Home,
    base_url: String,
    model: String,
}

impl EndpointModel {
    fn new((home, base_url): (Home, &str), model: &str) -> Self {
        Self { home, base_url: base_url.to_owned(), model: model.to_owned() }
    }

    /// The model from the cached listing of the endpoint, or else from the built-in table.
    fn look_up(&self) -> Model {
        let listing = read_cached_listing(&self.home, &self.base_url);
        let mut models = listing.into_iter().flat_map(|listing| listing.models);
        let listed = models.find(|model| model.name == self.model);
        listed.unwrap_or_else(|| Model::from_name(&self.model))
    }
}

/// Whether a model accepts images; looked up when there is an image to send.
#[derive(Debug, Clone)]
pub struct ImageSupport {
    model: EndpointModel,
    known: Arc<OnceLock<bool>>,
}

impl ImageSupport {
    /// The image support of a model at an endpoint: none when `takes_images` is false, otherwise yes unless its listing
    /// says no.
    pub fn new(takes_images: bool, endpoint: (Home, &str), model: &str) -> Self {
        let known = if takes_images { OnceLock::new() } else { OnceLock::from(false) };
        Self { model: EndpointModel::new(endpoint, model), known: Arc::new(known) }
    }

    /// Whether the model accepts images; looked up once.
    pub fn is_supported(&self) -> bool {
        *self.known.get_or_init(|| self.model.look_up().images.unwrap_or(true))
    }
}

/// The size of a model's context window: the user's setting, else the endpoint's listing, else the built-in table.
/// Looked up when a request is about to be sent.
#[derive(Debug, Clone)]
pub struct ContextWindowSize {
    model: EndpointModel,
    /// The size in tokens; `None` when unknown.
    known: Arc<OnceLock<Option<u64>>>,
}

impl ContextWindowSize {
    /// The window of a model at an endpoint; `named` is the user's setting.
    pub fn new(named: Option<u64>, endpoint: (Home, &str), model: &str) -> Self {
        let known = named.map_or_else(OnceLock::new, |own| OnceLock::from(Some(own)));
        Self { model: EndpointModel::new(endpoint, model), known: Arc::new(known) }
    }

    /// The size in tokens; looked up once.
    pub fn tokens(&self) -> u64 {
        self.known().unwrap_or(UNKNOWN_WINDOW)
    }

    /// Whether the size comes from the user, the endpoint or the table, and is not assumed.
    pub fn is_known(&self) -> bool {
        self.known().is_some()
    }

    fn known(&self) -> Option<u64> {
        *self.known.get_or_init(|| self.model.look_up().context_window)
    }
}

/// The endpoints of the cache, as an object.
fn read_cache(home: &Home) -> Value {
    let read =
        StateDir::open_root(home.path()).and_then(|it| it.read(Home::MODELS, MAX_CACHE_BYTES));
    let text = read.ok().flatten().unwrap_or_default();
    let mut cache: Value = serde_json::from_slice(&text).unwrap_or_default();
    let endpoints = cache.get_mut("endpoints").map(Value::take).unwrap_or_default();
    if endpoints.is_object() { endpoints } else { json!({}) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_model_is_known_and_an_unknown_one_is_narrow() {
        let default = Model::from_name(crate::settings::config::DEFAULT_MODEL);
        assert_eq!(
            (default.window(), default.default_effort.as_deref()),
            (272_000, Some("medium"))
        );
        let unknown = Model::from_name("llama-9");
        assert_eq!((unknown.context_window, unknown.window()), (None, UNKNOWN_WINDOW));
        for model in built_in() {
            assert!(model.efforts.contains(&model.default_effort.unwrap()), "{}", model.name);
        }
    }

    #[test]
    fn both_shapes_of_a_listing_are_read() {
        let catalogue = json!({"models": [
            {"slug": "gpt-9", "context_window": 9, "default_reasoning_level": "low",
             "supported_reasoning_levels": [{"effort": "low"}, {"effort": "high"}]},
            {"slug": "secret", "visibility": "hide"},
        ]});
        let models = parse_listing(&catalogue).unwrap();
        assert_eq!(models.len(), 1);
        assert_eq!((models[0].window(), models[0].efforts.len()), (9, 2));
        let plain = json!({"object": "list", "data": [{"id": "gpt-5.5"}, {"id": "x"}, {"no": 1}]});
        let models = parse_listing(&plain).unwrap();
        assert_eq!(models.iter().map(Model::window).collect::<Vec<_>>(), [272_000, UNKNOWN_WINDOW]);
        assert_eq!(parse_listing(&json!({"error": 1})), None);
    }

    #[test]
    fn a_window_is_found_under_the_names_that_servers_use() {
        for (entry, expected) in [
            (json!({"max_input_tokens": 200_000, "max_tokens": 64_000}), Some(200_000)),
            (json!({"context_window": 131_072}), Some(131_072)),
            (json!({"max_model_len": 4_000}), Some(4_000)),
            (json!({"context_length": 9, "top_provider": {"context_length": 8}}), Some(8)),
            (json!({"max_context_length": 32_768, "loaded_context_length": 4_096}), Some(4_096)),
            (json!({"context_window": 400_000, "max_input_tokens": 272_000}), Some(272_000)),
            (json!({"context_window": null, "max_input_tokens": 0}), None),
            (json!({"max_tokens": 4_096}), None),
        ] {
            let mut named = entry.clone();
            named["id"] = json!("some-model");
            let models = parse_listing(&json!({ "data": [named] })).unwrap();
            assert_eq!(models[0].context_window, expected, "{entry}");
        }
    }

    #[test]
    fn a_model_accepts_images_unless_stated_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path().join("home"));
        let answer = json!({"data": [
            {"id": "eyes", "input_modalities": ["text", "image"]},
            {"id": "blind", "input_modalities": ["text"]},
            {"id": "gpt-5.5", "architecture": {"input_modalities": ["text"]}},
            {"id": "silent"},
        ]});
        cache_listing(
            &home,
            "u",
            &ModelListing { fetched_at: 1, models: parse_listing(&answer).unwrap() },
        )
        .unwrap();
        for (takes_images, base_url, model, expected) in [
            (true, "u", "eyes", true),
            (true, "u", "blind", false),
            (true, "u", "gpt-5.5", false),
            (true, "u", "silent", true),
            (true, "u", "unheard of", true),
            (true, "elsewhere", "gpt-5.5", true),
            (false, "u", "eyes", false),
        ] {
            let image_support = ImageSupport::new(takes_images, (home.clone(), base_url), model);
            assert_eq!(image_support.is_supported(), expected, "{model} at {base_url}");
        }
    }

    #[test]
    fn a_window_is_what_the_user_says_or_the_list_or_the_table() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path().join("home"));
        let answer = json!({"data": [{"id": "gpt-5.5", "context_window": 9_000}]});
        cache_listing(
            &home,
            "u",
            &ModelListing { fetched_at: 1, models: parse_listing(&answer).unwrap() },
        )
        .unwrap();
        for (named, base_url, model, expected) in [
            (Some(5), "u", "gpt-5.5", 5),
            (None, "u", "gpt-5.5", 9_000),
            (None, "elsewhere", "gpt-5.5", 272_000),
            (None, "u", "unheard of", UNKNOWN_WINDOW),
        ] {
            let window = ContextWindowSize::new(named, (home.clone(), base_url), model);
            assert_eq!(window.tokens(), expected, "{model} at {base_url}");
        }
    }

    #[test]
    fn a_listing_is_remembered_per_endpoint_and_a_broken_cache_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path().join("home"));
        let listing = ModelListing { fetched_at: 5, models: vec![Model::from_name("a")] };
        assert_eq!(read_cached_listing(&home, "u"), None);
        cache_listing(&home, "u", &listing).unwrap();
        cache_listing(&home, "v", &ModelListing { fetched_at: 6, models: Vec::new() }).unwrap();
        assert_eq!(read_cached_listing(&home, "u"), Some(listing.clone()));
        std::fs::write(home.models_cache(), "{oops").unwrap();
        assert_eq!(read_cached_listing(&home, "u"), None);
        cache_listing(&home, "u", &listing).unwrap();
        assert_eq!(read_cached_listing(&home, "u"), Some(listing));
    }
}
