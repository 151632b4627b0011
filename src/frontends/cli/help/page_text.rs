//! A page of the documentation as plain text for a terminal: links and emphasis removed, paragraphs wrapped, rows of
//! tables as lists.

use crate::frontends::render::write_wrapped;

/// The section of a page below a heading of the second level, with the heading; the whole page if there is none.
pub fn page_section<'p>(page: &'p str, heading: &str) -> &'p str {
    let title = format!("## {heading}\n");
    let Some(start) = page.find(&title) else { return page };
    let section = &page[start..];
    section.find("\n\n## ").map_or(section, |end| &section[..=end])
}

/// A Markdown page as plain text with lines of at most `width` cells, except for code.
pub fn page_text(page: &str, width: usize) -> String {
    let mut writer = PageWriter { width, ..PageWriter::default() };
    for line in page.lines() {
        writer.add_line(line);
    }
    writer.end_block();
    writer.text
}

#[derive(Default)]
struct PageWriter {
    text: String,
    width: usize,
    is_code: bool,
    /// The mark of the list item that is read, such as `- `.
    label: String,
    /// The paragraph or list item that is read.
    words: String,
    /// The header of the table that is read.
    header: Vec<String>,
}

impl PageWriter {
    fn add_line(&mut self, line: &str) {
        if line.starts_with("```") {
            self.end_block();
            self.is_code = !self.is_code;
        } else if self.is_code {
            self.text.extend(["    ", line, "\n"]);
        } else if let Some(row) = line.strip_prefix('|') {
            self.end_block();
            self.add_row(row);
        } else if line.is_empty() {
            self.end_block();
            self.header.clear();
            if !self.text.ends_with("\n\n") {
                self.text.push('\n');
            }
        } else if line.starts_with('#') {
            self.end_block();
            let title = line.trim_start_matches('#').trim().to_uppercase();
            self.text.extend([title.as_str(), "\n"]);
        } else {
            let label = item_label(line);
            if !label.is_empty() {
                self.end_block();
                label.clone_into(&mut self.label);
            }
            self.words.extend([" ", line[label.len()..].trim()]);
        }
    }

    /// Writes the paragraph or list item that was read.
    fn end_block(&mut self) {
        let label = std::mem::take(&mut self.label);
        let words = plain_words(&std::mem::take(&mut self.words));
        if !words.is_empty() {
            write_wrapped(&mut self.text, &label, &words, self.width);
        }
    }

    /// Writes a row of a table: the first cell, and the others behind it, or below it with their headings.
    fn add_row(&mut self, row: &str) {
        let cells: Vec<String> =
            row.trim_end().trim_end_matches('|').split('|').map(plain_words).collect();
        if self.header.is_empty() {
            self.header = cells;
            return;
        }
        let is_rule = |cell: &String| cell.chars().all(|c| matches!(c, '-' | ':'));
        if cells.iter().all(is_rule) {
            return;
        }
        match cells.as_slice() {
            [first, second] => {
                write_wrapped(&mut self.text, &format!("  {first:<6}"), second, self.width);
            }
            [first, others @ ..] => {
                write_wrapped(&mut self.text, "", first, self.width);
                for (heading, cell) in self.header.iter().skip(1).zip(others) {
                    let name = heading.split(':').next().unwrap_or_default();
                    let words = format!("{name}: {cell}");
                    write_wrapped(&mut self.text, "    ", &words, self.width);
                }
            }
            [] => {}
        }
    }
}

/// The mark with which a line begins a list item; empty for other lines.
fn item_label(line: &str) -> &str {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let length = if digits > 0 && line[digits..].starts_with(". ") {
        digits + 2
    } else if line.starts_with("- ") {
        2
    } else {
        0
    };
    &line[..length]
}

/// Text without emphasis, and with the texts of links alone.
fn plain_words(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text.trim();
    while let Some((before, after)) = rest.split_once("](") {
        let start = before.rfind('[').unwrap_or(before.len());
        plain.push_str(&before[..start]);
        plain.push_str(before.get(start + 1..).unwrap_or_default());
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    plain.replace("**", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Title\n\nSee [the page](page.md) for **all** of it.\n\n## One\n\n- an item that is\n  continued\n- two\n\n\
        ```sh\npixir --a --very-long-line\n```\n\n## Two\n\n| exit | meaning |\n|---:|---|\n| 0 | an answer |\n";

    #[test]
    fn a_page_becomes_plain_lines() {
        assert_eq!(
            page_text(PAGE, 20),
            "TITLE\n\nSee the page for all\nof it.\n\nONE\n\n- an item that is\n  continued\n- two\n\n    \
             pixir --a --very-long-line\n\nTWO\n\n  0     an answer\n"
        );
    }

    #[test]
    fn a_section_ends_before_the_next_one() {
        assert!(page_section(PAGE, "One").starts_with("## One\n\n- an item"));
        assert!(page_section(PAGE, "One").ends_with("```\n"));
        assert!(page_section(PAGE, "Two").ends_with("an answer |\n"));
        assert_eq!(page_section(PAGE, "Three"), PAGE);
    }

    #[test]
    fn a_wide_table_becomes_a_list() {
        let table = "| what | full: all of it | off |\n|---|---|---|\n| network | none | open |\n";
        assert_eq!(page_text(table, 40), "network\n    full: none\n    off: open\n");
    }
}
