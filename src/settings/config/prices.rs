//! The price table: dollars per million tokens, from the user's settings. Unknown prices stay unknown.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::forms;
use crate::record::event::TokenUsage;

/// The price of a million tokens of a model, in US dollars.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Price {
    #[schemars(schema_with = "amount")]
    input: f64,
    /// The price of cached input; that of other input by default.
    #[serde(default)]
    #[schemars(schema_with = "amount")]
    cached_input: Option<f64>,
    #[schemars(schema_with = "amount")]
    output: f64,
}

/// The prices of a run: `{"model": {"input": 1.25, "cached_input": 0.125, "output": 10}}`. There is no built-in
/// table, because a guessed price is worse than none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "forms::EntryTable")]
pub struct Prices(BTreeMap<String, Price>);

impl TryFrom<forms::EntryTable> for Prices {
    type Error = String;

    fn try_from(table: forms::EntryTable) -> Result<Self, String> {
        let read = |(model, entry): (String, Value)| match forms::parse_object::<Price>(&entry) {
            Ok(mut price) => {
                price.cached_input.get_or_insert(price.input);
                Ok((model, price))
            }
            Err(reason) => {
                Err(format!("must have dollars per million tokens for `{model}`: {reason}"))
            }
        };
        table.into_iter().map(read).collect::<Result<_, _>>().map(Self)
    }
}

impl Prices {
    /// The price of a model, if it is known.
    pub fn get(&self, model: &str) -> Option<Price> {
        self.0.get(model).copied()
    }

    /// The cost of tokens in dollars, if the model's price is known.
    pub fn cost(&self, model: &str, tokens: &TokenUsage) -> Option<f64> {
        Some(self.get(model)?.cost(tokens))
    }
}

impl Price {
    /// The cost of tokens in dollars. Reasoning tokens are part of the output, cached ones part of the input.
    #[expect(clippy::cast_precision_loss, reason = "an estimate; counts are far below 2^52")]
    fn cost(self, tokens: &TokenUsage) -> f64 {
        let cached = tokens.cached_tokens.min(tokens.input_tokens);
        let fresh = tokens.input_tokens - cached;
        let cached_price = self.cached_input.unwrap_or(self.input);
        let parts =
            [(fresh, self.input), (cached, cached_price), (tokens.output_tokens, self.output)];
        let micros: f64 = parts.into_iter().map(|(count, price)| count as f64 * price).sum();
        // Floating-point sums are not exact decimals, and no provider bills a billionth of a dollar.
        (micros * 1e3).round() / 1e9
    }
}

fn amount(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "number", "minimum": 0, "maximum": 1e6, "refusal": "is not a price" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(table: &Value) -> Result<Prices, String> {
        serde_json::from_value(table.clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn cached_tokens_have_their_own_price_and_unknown_stays_unknown() {
        let table = json!({
            "m": {"input": 2, "cached_input": 0.5, "output": 10},
            "n": {"input": 2, "output": 10},
        });
        let prices = read(&table).unwrap();
        let tokens = TokenUsage {
            input_tokens: 1_000_000,
            cached_tokens: 400_000,
            output_tokens: 100_000,
            ..TokenUsage::default()
        };
        assert!((prices.cost("m", &tokens).unwrap() - 2.4).abs() < 1e-9);
        assert!((prices.cost("n", &tokens).unwrap() - 3.0).abs() < 1e-9);
        assert_eq!(prices.cost("other", &tokens), None);
    }

    #[test]
    fn a_mistake_in_a_price_is_named() {
        for (table, words) in [
            (json!({"m": 3}), "`m`: it is not an object"),
            (json!({"m": {"input": 1}}), "`output` is missing"),
            (json!({"m": {"input": -1, "output": 1}}), "`input` is not a price"),
            (json!({"m": {"input": 1, "output": 1, "ouput": 1}}), "`ouput` is none of"),
        ] {
            let mistake = read(&table).unwrap_err();
            assert!(mistake.contains(words), "{mistake}");
        }
    }
}
