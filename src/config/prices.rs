//! The price table: what a million tokens cost, where somebody has said so. Unknown stays unknown.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::event::Tokens;

/// What a million tokens of a model cost, in US dollars.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    pub input: f64,
    /// What the Provider had in its cache; as dear as the rest when nobody says otherwise.
    pub cached_input: f64,
    pub output: f64,
}

/// The prices of this run. There is no built-in table: a price that is guessed is worse than none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prices(BTreeMap<String, Price>);

impl Prices {
    /// Reads `{"model": {"input": 1.25, "cached_input": 0.125, "output": 10}}`.
    pub fn read(value: &Value) -> Result<Self, String> {
        let table = value.as_object().ok_or("must be an object of prices by model")?;
        let read = |(model, entry): (&String, &Value)| {
            price(entry).map(|price| (model.clone(), price)).map_err(|reason| {
                format!("must have dollars per million tokens for `{model}`: {reason}")
            })
        };
        table.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// The price of a model, if it is known.
    pub fn of(&self, model: &str) -> Option<Price> {
        self.0.get(model).copied()
    }

    /// The table as it would be written.
    pub fn shown(&self) -> Value {
        let row = |(model, price): (&String, &Price)| {
            let Price { input, cached_input, output } = price;
            let row = serde_json::json!({ "input": input, "cached_input": cached_input, "output": output });
            (model.clone(), row)
        };
        self.0.iter().map(row).collect()
    }

    /// What so many tokens cost, if the model's price is known.
    pub fn cost(&self, model: &str, tokens: &Tokens) -> Option<f64> {
        Some(self.of(model)?.cost(tokens))
    }
}

impl Price {
    /// What so many tokens cost. Reasoning is part of the output, cached input part of the input.
    #[expect(clippy::cast_precision_loss, reason = "an estimate; counts are far below 2^52")]
    fn cost(self, tokens: &Tokens) -> f64 {
        let cached = tokens.cached_tokens.min(tokens.input_tokens);
        let fresh = tokens.input_tokens - cached;
        let parts =
            [(fresh, self.input), (cached, self.cached_input), (tokens.output_tokens, self.output)];
        let micros: f64 = parts.into_iter().map(|(count, price)| count as f64 * price).sum();
        // Sums of decimals are not decimals; nobody bills a thousandth of a millionth.
        (micros * 1e3).round() / 1e9
    }
}

fn price(entry: &Value) -> Result<Price, String> {
    const NAMES: [&str; 3] = ["input", "cached_input", "output"];
    let fields = entry.as_object().ok_or("it is not an object")?;
    if let Some(odd) = fields.keys().find(|name| !NAMES.contains(&name.as_str())) {
        return Err(format!("`{odd}` is none of input, cached_input and output"));
    }
    let number = |name: &str| match fields.get(name) {
        None => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) if (0.0..=1e6).contains(&number) => Ok(Some(number)),
            _ => Err(format!("`{name}` is no price")),
        },
    };
    let missing = |name: &str| format!("`{name}` is missing");
    let input = number("input")?.ok_or_else(|| missing("input"))?;
    let output = number("output")?.ok_or_else(|| missing("output"))?;
    Ok(Price { input, cached_input: number("cached_input")?.unwrap_or(input), output })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cached_tokens_have_their_own_price_and_unknown_stays_unknown() {
        let table = json!({
            "m": {"input": 2, "cached_input": 0.5, "output": 10},
            "n": {"input": 2, "output": 10},
        });
        let prices = Prices::read(&table).unwrap();
        let tokens = Tokens {
            input_tokens: 1_000_000,
            cached_tokens: 400_000,
            output_tokens: 100_000,
            ..Tokens::default()
        };
        assert!((prices.cost("m", &tokens).unwrap() - 2.4).abs() < 1e-9);
        assert!((prices.cost("n", &tokens).unwrap() - 3.0).abs() < 1e-9);
        assert_eq!(prices.cost("other", &tokens), None);
    }

    #[test]
    fn a_mistake_in_a_price_is_named() {
        for (table, words) in [
            (json!(3), "must be an object"),
            (json!({"m": 3}), "`m`: it is not an object"),
            (json!({"m": {"input": 1}}), "`output` is missing"),
            (json!({"m": {"input": -1, "output": 1}}), "`input` is no price"),
            (json!({"m": {"input": 1, "output": 1, "ouput": 1}}), "`ouput` is none of"),
        ] {
            let mistake = Prices::read(&table).unwrap_err();
            assert!(mistake.contains(words), "{mistake}");
        }
    }
}
