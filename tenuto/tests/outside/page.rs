//! The web page in a real browser, and the door before it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use workload::check::Promise;

use crate::common::browser::Browser;
use crate::common::load::Load;
use crate::common::{EXIT_USAGE, Rig, have, seed, wait_until};

const MIB: u64 = 1 << 20;
const TOKEN: &str = "sesame-0123456789abcdef";
/// Connections that are served at a time.
const PLACES: usize = 256;
const PATIENCE: Duration = Duration::from_secs(60);
/// As a path it is harmless; written into a page as it is, it would run.
const EVIL: &str = "<img src=x onerror=\"document.title='owned'\">.img";

/// An address that was free a moment ago.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address")
}

fn token_file(rig: &Rig, text: &str, mode: u32) -> PathBuf {
    let path = rig.dir.join("web-token");
    std::fs::write(&path, text).expect("written");
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&path, mode).expect("set");
    path
}

/// A rig whose daemon shows its page at this address.
fn shown() -> (Rig, SocketAddr) {
    let mut rig = Rig::new();
    let address = free_address();
    let token = token_file(&rig, TOKEN, 0o600);
    rig.section(&format!(
        "[listen]\nweb = \"{address}\"\nweb-token-file = \"{}\"\n",
        token.display()
    ));
    (rig, address)
}

/// Status and text of one request over TCP, as it stands on the wire.
fn ask(address: SocketAddr, method: &str, path: &str, token: Option<&str>) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("connected");
    let token = token.map_or(String::new(), |token| format!("Authorization: {token}\r\n"));
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{token}Content-Length: 0\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a reply");
    let status = reply.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.unwrap_or_else(|| panic!("{reply}")), reply)
}

#[test]
fn over_tcp_nothing_can_be_ordered_and_nothing_seen_without_the_token() {
    let (mut rig, address) = shown();
    let image = rig.image("disk.img", MIB);
    rig.volume("disk", &image, "write-back", "");
    let daemon = rig.serve();
    let right = format!("Bearer {TOKEN}");
    let data = [
        "/v1/status",
        "/v1/volumes",
        "/v1/volumes/disk",
        "/v1/history",
        "/v1/events",
        "/metrics",
    ];
    let wrong = [
        None,
        Some("Bearer sesame-0123456789abcdeX".to_owned()),
        Some(format!("Bearer {TOKEN}0")),
        Some(format!("Basic {TOKEN}")),
        Some("Bearer".to_owned()),
    ];
    for path in data {
        for token in &wrong {
            let (status, reply) = ask(address, "GET", path, token.as_deref());
            assert_eq!(status, 401, "{path} {token:?}: {reply}");
            assert!(!reply.contains("disk"), "{reply}");
        }
        assert_eq!(ask(address, "GET", path, Some(&right)).0, 200, "{path}");
    }
    // A token in the address is for the page, which takes it away; data it does not open.
    let (status, _) = ask(address, "GET", &format!("/v1/status?token={TOKEN}"), None);
    assert_eq!(status, 401);
    for path in ["/", "/page.js", "/page.css", "/uplot.js", "/uplot.css"] {
        let (status, reply) = ask(address, "GET", path, None);
        assert_eq!(status, 200, "{path}");
        assert!(reply.contains("content-security-policy: default-src 'none'"));
    }
    for (method, path) in [
        ("POST", "/v1/volumes/disk/destage"),
        ("POST", "/v1/volumes"),
        ("POST", "/v1/reload"),
        ("PATCH", "/v1/volumes/disk"),
        ("DELETE", "/v1/volumes/disk"),
        ("PUT", "/v1/status"),
        ("DELETE", "/"),
    ] {
        let (status, reply) = ask(address, method, path, Some(&right));
        assert_eq!(status, 405, "{method} {path}: {reply}");
    }
    assert_eq!(rig.show("disk")["name"], "disk", "it is still there");
    assert_eq!(ask(address, "GET", "/v1/reload", Some(&right)).0, 404);

    let explained = rig.done(&["config", "--explain"]);
    assert!(explained.contains("web-token-file") && !explained.contains(TOKEN));
    let log = daemon.stop();
    assert!(!log.contains(TOKEN), "{log}");
}

/// Fails when: a request may take an hour to arrive.
#[test]
fn clients_that_send_nothing_or_a_byte_at_a_time_hold_no_place_of_others() {
    let (mut rig, address) = shown();
    let image = rig.image("disk.img", MIB);
    rig.volume("disk", &image, "write-back", "");
    let daemon = rig.serve();
    // More than there are places, and nobody with a token.
    let mut slow: Vec<TcpStream> = (0..PLACES + 8)
        .map(|_| TcpStream::connect(address).expect("connected"))
        .collect();
    let mut bytes = b"GET /v1/status HTTP/1.1\r\nX: "
        .iter()
        .chain(std::iter::repeat(&b'x'));
    let mut good = TcpStream::connect(address).expect("connected");
    good.set_nonblocking(true).expect("set");
    let request = format!(
        "GET /v1/status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\
         Connection: close\r\n\r\n"
    );
    good.write_all(request.as_bytes()).expect("sent");
    let mut reply = [0; 12];
    let mut cut = 0;
    // All the while the slow ones go on: a byte each, for as long as they are let.
    wait_until(
        "the good one is answered, the slow ones are cut off",
        PATIENCE,
        || {
            let byte = [*bytes.next().expect("it has no end")];
            let before = slow.len();
            slow.retain_mut(|stream| stream.write_all(&byte).is_ok());
            cut += before - slow.len();
            let answered = reply[0] != 0 || good.read(&mut reply).is_ok_and(|read| read == 12);
            answered && cut >= PLACES
        },
    );
    assert_eq!(&reply, b"HTTP/1.1 200");
    // The admin socket is another door.
    assert_eq!(rig.show("disk")["name"], "disk");
    daemon.stop();
}

#[test]
fn a_page_without_a_good_token_file_is_not_started() {
    let address = free_address();
    let section = |line: &str| format!("[listen]\nweb = \"{address}\"\n{line}\n");
    let mut rig = Rig::new();
    rig.section(&section(""));
    rig.write_config();
    let words = rig.refused(&["config", "--check"], EXIT_USAGE);
    assert!(words.contains("web: has no token"), "{words}");
    for (text, mode) in [
        (TOKEN, 0o644),
        ("short", 0o600),
        ("two words of token", 0o600),
    ] {
        let mut rig = Rig::new();
        let path = token_file(&rig, text, mode);
        rig.section(&section(&format!(
            "web-token-file = \"{}\"",
            path.display()
        )));
        rig.write_config();
        let words = rig.refused(&["serve"], EXIT_USAGE);
        assert!(words.contains("web-token-file: "), "{words}");
        assert!(!words.contains(text), "{words}");
    }
}

/// Reads the page's table as it stands.
const TABLE: &str = "Object.fromEntries([...document.querySelectorAll('#rows tr')].map((row) => \
     [row.dataset.volume, [...row.cells].map((cell) => cell.dataset.value ?? cell.textContent)]))";

fn cell(table: &Value, volume: &str, column: usize) -> String {
    let cell = table[volume][column].as_str();
    cell.unwrap_or_else(|| panic!("{volume} in {table}"))
        .to_owned()
}

/// Waits until an expression is true in the page.
fn wait_for(browser: &mut Browser, what: &str, expression: &str) {
    wait_until(what, PATIENCE, || browser.value(expression) == true);
}

#[test]
fn the_page_shows_what_status_says_and_writes_names_as_text() {
    if !have(
        "the_page_shows_what_status_says_and_writes_names_as_text",
        &["chromium"],
    ) {
        return;
    }
    let (mut rig, address) = shown();
    let image = rig.image("disk.img", 16 * MIB);
    let evil = rig.image(EVIL, MIB);
    rig.volume("disk", &image, "write-back", "destage-after = \"never\"");
    let quoted = evil.display().to_string().replace('"', "\\\"");
    rig.volume("odd", &PathBuf::from(quoted), "write-through", "");
    let daemon = rig.serve();
    let mut load = Load::new(1, 16 * MIB, Promise::Prefix, seed(61));
    let counts = load.run(rig.connect("disk"), |counts| counts.written_bytes < 8 * MIB);
    counts.expect("reads are right");
    rig.gone_clients("disk");

    let mut browser = Browser::start();
    browser.open(&format!("http://{address}/#token={TOKEN}"));
    wait_for(
        &mut browser,
        "two rows",
        "document.querySelectorAll('#rows tr').length === 2",
    );
    let status = rig.json(&["status"]);
    let table = browser.value(TABLE);
    for volume in status["volumes"].as_array().expect("a list") {
        let name = volume["name"].as_str().expect("a name");
        assert_eq!(
            cell(&table, name, 1),
            volume["state"].as_str().expect("a state")
        );
        assert_eq!(
            cell(&table, name, 2),
            volume["policy"].as_str().expect("a policy")
        );
        for (column, value) in [
            (3, &volume["clients"]),
            (4, &volume["dirty_bytes"]),
            (7, &volume["reads"]["requests"]),
            (8, &volume["writes"]["requests"]),
        ] {
            assert_eq!(
                cell(&table, name, column),
                value.to_string(),
                "{name} {column}"
            );
        }
    }
    let dirty = status["volumes"][0]["dirty_bytes"]
        .as_u64()
        .expect("a number");
    assert!(dirty > 0, "the load has left something to show");

    wait_for(
        &mut browser,
        "charts with points",
        "[...document.querySelectorAll('#charts .chart')].filter((chart) => \
         Number(chart.dataset.points) >= 3).length >= 3",
    );
    // Something is on the canvas, and not only the page's word for it.
    let painted = "[...document.querySelectorAll('#charts canvas')].every((canvas) => \
         canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data \
         .some((byte) => byte !== 0))";
    assert_eq!(browser.value(painted), true);
    wait_for(
        &mut browser,
        "the start",
        "document.querySelector('#events .info') !== null",
    );

    // One volume: reached as a reader does, by its link.
    browser.value("document.querySelector('tr[data-volume=odd] a').click()");
    wait_for(
        &mut browser,
        "its detail",
        "!document.getElementById('detail').hidden",
    );
    let facts = browser.value("document.getElementById('detail-facts').textContent");
    assert!(
        facts.as_str().is_some_and(|facts| facts.contains(EVIL)),
        "{facts}"
    );
    assert_eq!(
        browser.value("document.querySelector('img') === null"),
        true
    );
    let title = browser.value("document.title");
    assert!(
        title
            .as_str()
            .is_some_and(|title| title.ends_with("tenuto")),
        "{title}"
    );

    // The token is kept for this page, and is in no address.
    let place = browser.value("location.href");
    assert!(
        place.as_str().is_some_and(|place| !place.contains(TOKEN)),
        "{place}"
    );
    assert_eq!(
        browser.value("sessionStorage.getItem('tenuto-token')"),
        TOKEN
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());

    // A wrong one is answered by a question and by no data.
    browser.open("about:blank");
    let mut stranger = Browser::start();
    stranger.open(&format!("http://{address}/#token=sesame-0123456789abcdeX"));
    wait_for(
        &mut stranger,
        "the question",
        "document.getElementById('door')?.hidden === false",
    );
    assert_eq!(
        stranger.value("document.getElementById('main').hidden"),
        true
    );
    assert_eq!(
        stranger.value("document.querySelectorAll('#rows tr').length"),
        0
    );
    drop((browser, stranger));
    daemon.stop();
}
