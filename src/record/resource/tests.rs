//! Tests of Resources: content sniffing, limits of attachments, storage, and the contents that a Turn shows.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::base::secret::Secrets;
use crate::record::event::ResourceDescriptor;
use crate::record::history::History;

/// A PNG with `rest` bytes of image data.
fn png(width: u32, height: u32, rest: usize) -> Vec<u8> {
    let part = |name: &[u8], data: &[u8]| {
        let length = u32::try_from(data.len()).unwrap().to_be_bytes();
        [&length, name, data, b"crc!"].concat()
    };
    let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
    let head = part(b"IHDR", &[&size[..], b"\x08\x06\0\0\0"].concat());
    let pixels = part(b"IDAT", &vec![7; rest]);
    [b"\x89PNG\r\n\x1a\n".to_vec(), head, pixels, part(b"IEND", b"")].concat()
}

fn jpeg(width: u16, height: u16) -> Vec<u8> {
    let mut bytes = b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xc2\0\x11\x08".to_vec();
    bytes.extend(height.to_be_bytes());
    bytes.extend(width.to_be_bytes());
    bytes
}

fn webp(chunk: &[u8], header: &[u8]) -> Vec<u8> {
    [b"RIFF\0\0\0\0WEBP", chunk, b"\0\0\0\0", header, b"\0\0\0\0"].concat()
}

#[test]
fn images_are_known_by_their_bytes() {
    let gif = b"GIF89a\x40\x01\xf0\0rest".to_vec();
    let lossy = webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a\x80\x02\xe0\x01");
    let lossless = webp(b"VP8L", b"\x2f\x7f\xc2\x77\0");
    let extended = webp(b"VP8X", b"\0\0\0\0\x7f\x02\0\xdf\x01\0");
    for (bytes, media_type, width, height) in [
        (png(640, 480, 0), "image/png", 640, 480),
        (jpeg(1920, 1080), "image/jpeg", 1920, 1080),
        (gif, "image/gif", 320, 240),
        (lossy, "image/webp", 640, 480),
        (lossless, "image/webp", 640, 480),
        (extended, "image/webp", 640, 480),
    ] {
        let image = sniff::ImageHeader { media_type, width, height };
        assert_eq!(detect_content(&bytes).ok(), Some(ContentKind::Image(image)), "{media_type}");
        assert!(is_image(&bytes[..12.min(bytes.len())]));
    }
}

#[test]
fn other_files_are_text_or_have_a_type() {
    for (bytes, expected) in [
        (&b"fn main() {}\n"[..], ContentKind::Text),
        ("größe\u{1b}[1m".as_bytes(), ContentKind::Text),
        (b"BM is a text", ContentKind::Text),
        (b"caf\xe9", ContentKind::File("application/octet-stream")),
        (b"a\0b", ContentKind::File("application/octet-stream")),
        (b"%PDF-1.7 and so on", ContentKind::File("application/pdf")),
        (b"PK\x03\x04rest", ContentKind::File("application/zip")),
        (b"\0\0\0\x18ftypisom", ContentKind::File("application/octet-stream")),
    ] {
        assert_eq!(detect_content(bytes).ok(), Some(expected), "{bytes:?}");
    }
}

#[test]
fn images_that_no_provider_accepts_are_refused() {
    let words = |bytes: &[u8]| detect_content(bytes).unwrap_err().to_string();
    assert!(words(b"\x89PNG\r\n\x1a\n").contains("broken"));
    assert!(words(b"\xff\xd8\xff\xe0\0\x04ab\xff\xd9").contains("broken"));
    assert!(words(&png(0, 5, 0)).contains("broken"));
    let whole = png(5, 5, 100);
    for cut in [24, 40, 100, whole.len() - 12, whole.len() - 1] {
        assert!(words(&whole[..cut]).contains("broken"), "{cut}");
    }
    assert!(words(&png(16_001, 5, 0)).contains("16001x5"));
    let huge = png(5, 5, usize::try_from(MAX_IMAGE_BYTES).unwrap());
    assert!(words(&huge).contains("8388608 are allowed for an image"));
    assert!(words(b"\0\0\0\x18ftypheic").contains("image/heic"));
    assert!(words(b"II*\0rest").contains("image/tiff"));
    assert!(words(b"BM\x0c\0\0\0\0\0\0\0ab").contains("image/bmp"));
}

proptest! {
    #[test]
    fn looking_never_panics(
        magic in prop::sample::select(vec![
            &b""[..], b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBP",
            b"RIFF\0\0\0\0WEBPVP8X", b"RIFF\0\0\0\0WEBPVP8L", b"BM", b"\0\0\0\0ftyp",
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let bytes = [magic, &rest].concat();
        if let Ok(ContentKind::Image(image)) = detect_content(&bytes) {
            prop_assert!(image.width > 0 && image.width <= LONGEST_SIDE);
            prop_assert!(is_image(&bytes));
        }
    }

    #[test]
    fn names_are_one_visible_line(name in any::<String>()) {
        let plain = display_name(Path::new(&name));
        prop_assert!(!plain.is_empty() && plain.chars().count() <= 120);
        let has_odd = plain.contains(|c: char| c.is_control() || c == '\u{202e}');
        prop_assert!(!has_odd);
        prop_assert_eq!(display_name(Path::new(&plain)).contains('\n'), false);
    }
}

struct ResourceFixture {
    folder: tempfile::TempDir,
}

impl ResourceFixture {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }
    fn write_file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
    /// A sparse file of `length` zeros.
    fn write_sparse_file(&self, name: &str, length: u64) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::File::create(&path).unwrap().set_len(length).unwrap();
        path
    }
    fn resources(&self) -> Resources {
        Resources::new(&crate::base::files::StatePath::root(self.folder.path()).join("session"))
    }
    fn stored(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path().join("session/resources")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

#[test]
fn whatever_cannot_be_attached_says_why() {
    let fixture = ResourceFixture::new();
    let root = fixture.folder.path();
    fixture.write_file("empty", "");
    fixture.write_sparse_file("huge", MAX_ATTACHMENT_BYTES + 1);
    std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    std::os::unix::fs::symlink("pipe", root.join("link")).unwrap();
    std::os::unix::fs::symlink("loop", root.join("loop")).unwrap();
    for (name, kind, words) in [
        ("absent", Kind::NotFound, "there is no such file"),
        ("empty/below", Kind::NotFound, "there is no such file"),
        (".", Kind::InvalidArgs, "a directory"),
        ("pipe", Kind::InvalidArgs, "a named pipe"),
        ("link", Kind::InvalidArgs, "a named pipe"),
        ("socket", Kind::InvalidArgs, "a socket"),
        ("/dev/zero", Kind::InvalidArgs, "a device"),
        ("loop", Kind::InvalidArgs, "it cannot be read"),
        ("empty", Kind::InvalidArgs, "it is empty"),
        ("huge", Kind::InvalidArgs, "16777216 are allowed for an attachment"),
    ] {
        let error = Attachment::open(&root.join(name)).unwrap_err();
        assert_eq!(error.kind(), kind, "{name}");
        assert!(error.to_string().contains(words), "{name}: {error}");
        assert_eq!(error.next_actions().len(), 1);
    }
}

#[test]
fn there_are_limits_for_all_together() {
    let fixture = ResourceFixture::new();
    let many: Vec<PathBuf> =
        (0..21).map(|n| fixture.write_file(&format!("f{n}"), format!("{n}"))).collect();
    assert!(
        read_attachments(&many, fixture.folder.path())
            .unwrap_err()
            .to_string()
            .contains("20 attachments are allowed")
    );
    let same = vec![many[0].clone(); 30];
    assert_eq!(
        read_attachments(&same, fixture.folder.path()).unwrap().len(),
        1,
        "the same file counts once"
    );
    let large: Vec<PathBuf> =
        (0..4).map(|n| fixture.write_sparse_file(&format!("l{n}"), MAX_ATTACHMENT_BYTES)).collect();
    assert_eq!(read_attachments(&large[..3], fixture.folder.path()).unwrap().len(), 3);
    assert!(
        read_attachments(&large, fixture.folder.path())
            .unwrap_err()
            .to_string()
            .contains("together")
    );
}

#[test]
fn what_is_kept_is_private_known_and_checked() {
    let fixture = ResourceFixture::new();
    let resources = fixture.resources();
    let image_bytes = png(3, 2, 9);
    let paths =
        [fixture.write_file("shot.png", &image_bytes), fixture.write_file("data", b"\0\x01")];
    let files = read_attachments(&paths, fixture.folder.path()).unwrap();
    let taken = resources.store_attachments(files, &Secrets::default()).unwrap();
    let [image, data] = &taken[..] else { panic!("{taken:?}") };
    assert_eq!(image.summary(), "shot.png (image/png, 3x2, 66 bytes)");
    assert_eq!(data.summary(), "data (application/octet-stream, 2 bytes)");
    assert_eq!(image.id, format!("res_{}", &image.sha256.as_ref().unwrap()[..16]));
    assert_eq!(resources.bytes(image).unwrap(), image_bytes);
    assert_eq!(resources.find(&image.id).as_ref(), Some(image));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&resources.path(image)), 0o600);
    assert_eq!(mode(resources.path(image).parent().unwrap()), 0o700);
    assert_eq!(mode(&fixture.folder.path().join("session")), 0o700);
    assert_eq!(fixture.stored().len(), 2, "and nothing else");

    let mut other = image_bytes.clone();
    other[30] ^= 1;
    fs::write(resources.path(image), &other).unwrap();
    assert!(matches!(resources.bytes(image), Err(ResourceReadError::Changed)));
    fs::write(resources.path(image), "short").unwrap();
    assert!(matches!(resources.bytes(image), Err(ResourceReadError::Changed)));
    fs::remove_file(resources.path(image)).unwrap();
    assert!(matches!(resources.bytes(image), Err(ResourceReadError::Missing)));
    std::os::unix::fs::symlink("/etc/passwd", resources.path(image)).unwrap();
    assert!(matches!(resources.bytes(image), Err(ResourceReadError::Changed)));

    let again = Attachment::from_bytes("again.png", image_bytes).unwrap();
    resources.store_attachments(vec![again], &Secrets::default()).unwrap();
    assert!(resources.bytes(image).is_ok(), "stored again, in the place of what was not it");
}

#[test]
fn a_link_in_place_of_the_store_is_not_followed() {
    let fixture = ResourceFixture::new();
    let elsewhere = fixture.folder.path().join("elsewhere");
    fs::create_dir_all(fixture.folder.path().join("session")).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    let link = fixture.folder.path().join("session/resources");
    std::os::unix::fs::symlink(&elsewhere, link).unwrap();
    let file = Attachment::from_bytes("a", b"a".to_vec()).unwrap();
    assert!(fixture.resources().store_attachments(vec![file], &Secrets::default()).is_err());
    assert_eq!(fs::read_dir(elsewhere).unwrap().count(), 0);
}

#[test]
fn texts_lose_their_secrets_and_share_the_room() {
    let fixture = ResourceFixture::new();
    let resources = fixture.resources();
    let secrets = Secrets::new([("TOKEN".to_owned(), "hunter2-hunter2".to_owned())]);
    let text = |name: &str, text: String| Attachment::from_bytes(name, text.into()).unwrap();
    let mut files = vec![text("notes hunter2-hunter2", "key: hunter2-hunter2\n".to_owned())];
    files.extend((0..5).map(|n| text(&format!("long{n}"), format!("{n}23456é\n").repeat(20_000))));
    let taken = resources.store_attachments(files, &secrets).unwrap();
    let stored = String::from_utf8(resources.bytes(&taken[0]).unwrap()).unwrap();
    assert!(!stored.contains("hunter2") && stored.starts_with("key: "), "{stored}");
    assert!(!taken[0].name.contains("hunter2"));
    assert_eq!(taken[0].inlined, Some(taken[0].bytes));
    let inlined: Vec<usize> =
        taken.iter().map(|own| usize::try_from(own.inlined.unwrap()).unwrap()).collect();
    assert!(inlined.iter().all(|one| *one <= MAX_INLINED_BYTES));
    assert!(inlined.iter().sum::<usize>() <= MAX_TURN_INLINED_BYTES);
    assert_eq!(inlined[1] % 9, 0, "whole lines");

    let contents = resources.load_contents(&taken, true);
    let shown = |own: &ResourceDescriptor| match contents.attachment_part(own) {
        Some(ContentPart::Text(text)) => text.into_owned(),
        other => panic!("{other:?}"),
    };
    assert!(shown(&taken[0]).ends_with(&format!("[end of {}]", taken[0].name)));
    let next = format!("[{} of 180000 bytes; next: resource_view, offset {0}]", inlined[1]);
    assert!(shown(&taken[1]).ends_with(&next));
    assert!(shown(&taken[1]).starts_with(&format!("[{} long0]\n023456é\n", taken[1].id)));
}

#[test]
fn a_turn_shows_an_image_once_and_not_too_many() {
    let fixture = ResourceFixture::new();
    let resources = fixture.resources();
    let image = |n: u8| {
        let bytes = [png(1, 1, 0), vec![n]].concat();
        let Ok(ContentKind::Image(image)) = detect_content(&bytes) else { panic!() };
        resources.store_image("x.png", &bytes, image).unwrap()
    };
    let first = image(0);
    resources.begin_turn(&History::default(), std::slice::from_ref(&first));
    assert_eq!(resources.try_show_image(&first), ShowResult::Already);
    for n in 1..40 {
        assert_eq!(resources.try_show_image(&image(n)), ShowResult::Now, "{n}");
    }
    assert_eq!(resources.try_show_image(&image(40)), ShowResult::Full);
    resources.begin_turn(&History::default(), &[]);
    assert_eq!(resources.try_show_image(&first), ShowResult::Now);
    let large = ResourceDescriptor { bytes: MAX_TURN_IMAGE_BYTES, ..image(41) };
    assert_eq!(resources.try_show_image(&large), ShowResult::Full);
}

#[test]
fn what_a_turn_has_shown_stays_as_it_was() {
    let fixture = ResourceFixture::new();
    let resources = fixture.resources();
    let file = Attachment::from_bytes("a.png", png(1, 1, 4)).unwrap();
    let taken = resources.store_attachments(vec![file], &Secrets::default()).unwrap();
    resources.begin_turn(&History::default(), &taken);
    let url = |contents: &ResourceContents| contents.image(&taken[0]).map(str::to_owned).ok();
    let before = url(&resources.load_contents(&taken, true));
    assert!(before.as_ref().is_some_and(|url| url.starts_with("data:image/png;base64,iVBOR")));
    fs::remove_file(resources.path(&taken[0])).unwrap();
    assert_eq!(url(&resources.load_contents(&taken, true)), before);
    resources.begin_turn(&History::default(), &taken);
    let lost = resources.load_contents(&taken, true);
    assert_eq!(lost.image(&taken[0]), Err("it is missing"));
    resources.begin_turn(&History::default(), &taken);
    assert_eq!(
        resources.load_contents(&taken, false).image(&taken[0]),
        Err("this model takes no images")
    );
}

#[test]
fn descriptors_of_the_first_pixir_are_read() {
    let old = json!({"resource_id": "res_1", "kind": "image", "name": "a", "mime_type": "image/png",
        "size_bytes": 5, "content_sha256": "x", "store_ref": "session://s/resources/r"});
    let read = ResourceDescriptor::from_value(&old).unwrap();
    assert_eq!((read.id.as_str(), read.sha256.as_ref()), ("res_1", None));
    assert_eq!(read.summary(), "a (image/png, 5 bytes)");
    assert_eq!(read.extra["content_sha256"], "x");
    for odd in [json!(null), json!("x"), json!({}), json!({"id": ""}), json!({"id": 5})] {
        assert_eq!(ResourceDescriptor::from_value(&odd), None, "{odd}");
    }
    let contents = ResourceContents::default();
    assert_eq!(contents.image(&read), Err("another version of Pixir stored it"));
}
