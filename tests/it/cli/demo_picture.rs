//! The picture in the README: a run of `pixir demo`, drawn as an SVG image by this test.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::{command_without_env, ran};

const PICTURE: &str = "docs/demo.svg";

/// The width of the text and the distance of two lines, in pixels.
const TEXT_WIDTH: usize = 843;
const LINE_HEIGHT: usize = 19;
/// The margin around the text, and the height of the title bar.
const MARGIN: usize = 18;
const TITLE_HEIGHT: usize = 36;
/// Longer lines are wrapped at a space.
const COLUMNS: usize = 100;

#[test]
fn the_picture_of_the_demo_shows_a_real_run() {
    let home = tempfile::tempdir().unwrap();
    let mut command = command_without_env(home.path(), &["demo", "--color", "always"]);
    let run = ran(command.current_dir(home.path())).assert_exit_code(0);
    let folder = run.err.split("The Workspace is ").nth(1).and_then(|rest| rest.split(':').next());
    let folder = folder.expect("the demo names its folder");
    let (answer, _) = run.out.split_once("The test at first:").expect("the answer comes first");
    // Only a slow machine shows what a call waits for.
    let is_shown =
        |line: &&str| !line.starts_with("recording files") && !line.starts_with("waiting for");
    let work: Vec<&str> = run.err.trim_end().lines().filter(is_shown).collect();
    let turn = format!("{}\n{answer}", work.join("\n")).replace(folder, "/tmp/pixir-demo");
    fs::remove_dir_all(folder).unwrap();
    assert!(turn.contains("\u{1b}[32m+"), "the diff has colours: {turn}");

    let image = draw(&format!("$ pixir demo\n{turn}"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PICTURE);
    if fs::read_to_string(&path).unwrap_or_default() != image {
        fs::write(&path, image).unwrap();
        panic!("{PICTURE} was stale and has been rewritten: commit it");
    }
}

/// A terminal window with these lines, as SVG.
fn draw(text: &str) -> String {
    let lines: Vec<String> = text.trim_end().lines().flat_map(wrap).collect();
    let width = TEXT_WIDTH + 2 * MARGIN;
    let height = TITLE_HEIGHT + lines.len() * LINE_HEIGHT + MARGIN;
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<title>A run of pixir demo</title>
<style>
text {{ font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d8dee9; white-space: pre; }}
.bold {{ font-weight: bold; }}
.red {{ fill: #f08b92; }}
.green {{ fill: #a3d28f; }}
.cyan {{ fill: #7fc8d8; }}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#20242c"/>
<circle cx="20" cy="18" r="6" fill="#f08b92"/><circle cx="40" cy="18" r="6" fill="#e5c890"/><circle cx="60" cy="18" r="6" fill="#a3d28f"/>
"##
    );
    for (number, line) in lines.iter().enumerate() {
        let y = TITLE_HEIGHT + (number + 1) * LINE_HEIGHT - 5;
        let spans = spans(line);
        writeln!(svg, r#"<text x="{MARGIN}" y="{y}" xml:space="preserve">{spans}</text>"#).unwrap();
    }
    svg.push_str("</svg>\n");
    svg
}

/// The parts of a line that is too long; lines with colours are short.
fn wrap(line: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = line;
    while rest.chars().count() > COLUMNS && !rest.contains('\u{1b}') {
        let (limit, _) = rest.char_indices().nth(COLUMNS).unwrap();
        let end = rest[..limit].rfind(' ').unwrap_or(limit);
        parts.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    parts.push(rest.to_owned());
    parts
}

/// The spans of a line, one for each colour.
fn spans(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let mut drawn = escape(parts.next().unwrap_or_default());
    for part in parts {
        let (code, text) = part.split_once('m').expect("only colours are sent");
        let class = match code {
            "[0" => None,
            "[1" => Some("bold"),
            "[31" => Some("red"),
            "[32" => Some("green"),
            "[36" => Some("cyan"),
            other => panic!("a colour without a class: {other}"),
        };
        match class {
            Some(class) => {
                write!(drawn, r#"<tspan class="{class}">{}</tspan>"#, escape(text)).unwrap();
            }
            None => drawn.push_str(&escape(text)),
        }
    }
    drawn
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
