//! Medians, and tables whose columns line up.

use std::time::Duration;

/// The middle value.
pub fn median<T: Copy + Ord + Default>(values: &mut [T]) -> T {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// A time with three significant digits.
pub fn time(time: Duration) -> String {
    let nanos = time.as_secs_f64() * 1e9;
    let (value, unit) = match nanos {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "µs"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// The word for whether a promised limit holds.
pub fn verdict(holds: bool) -> &'static str {
    if holds { "holds" } else { "MISSED" }
}

/// Prints rows under a head as a Markdown table whose columns line up.
pub fn print<const N: usize>(head: [&str; N], rows: &[[String; N]]) {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let line = |cells: [&str; N]| {
        let cells = cells.iter().enumerate().map(|(column, cell)| {
            let gap = " ".repeat(width(column) - cell.chars().count());
            if column == 0 { format!("{cell}{gap}") } else { format!("{gap}{cell}") }
        });
        println!("| {} |", cells.collect::<Vec<_>>().join(" | "));
    };
    line(head);
    let rules: [String; N] = std::array::from_fn(|column| "-".repeat(width(column)));
    line(std::array::from_fn(|column| rules[column].as_str()));
    for row in rows {
        line(std::array::from_fn(|column| row[column].as_str()));
    }
}
