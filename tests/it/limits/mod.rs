//! Limits: what a whole family may spend, how often a model may repeat itself, how long an answer and an
//! input may be.

mod cut_answers;
mod family_usage;
mod fan_out;
mod loops;
mod waiting;
mod window;

use pixir::scripted::Script;
use serde_json::{Value, json};

use crate::support::Stage;

/// A test environment whose model has a price: ten dollars per million tokens of any kind.
async fn priced(script: Script, more: &Value) -> Stage {
    let stage = Stage::new(Stage::mark(), script).await;
    let prices = json!({"gpt-5.5": {"input": 10, "output": 10}});
    let mut settings = json!({"durability": "none", "prices": prices});
    for (name, value) in more.as_object().unwrap() {
        settings[name] = value.clone();
    }
    stage.configure(&settings);
    stage
}

fn envelope(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"))
}

/// What all Sessions of the Workspace spent, as `pixir usage` sums it up.
fn usage(stage: &Stage) -> Value {
    envelope(&stage.run(&["usage", "--json"]).expect_code(0).stdout)["output"]["total"].clone()
}
