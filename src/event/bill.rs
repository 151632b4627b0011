//! Bills: sums over what Providers have counted.

use super::{ProviderUsage, Tokens};

impl Tokens {
    /// Adds another count to this one; fields of the future are not summed.
    pub fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.input_tokens, other.input_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.output_tokens, other.output_tokens),
            (&mut self.reasoning_tokens, other.reasoning_tokens),
            (&mut self.total_tokens, other.total_tokens),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(more);
        }
    }
}

impl ProviderUsage {
    /// Everything the call was billed for, failed attempts included; `None` when nobody counted.
    pub fn billed(&self) -> Option<Tokens> {
        let mut counted = self.usage.iter().chain(self.failed_usage.as_deref());
        let mut sum = counted.next()?.clone();
        counted.for_each(|tokens| sum.add(tokens));
        Some(sum)
    }
}
