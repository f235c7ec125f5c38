//! What is read of an order to refresh a pool, and what is said where it is wrong.

use super::{Refresh, SOAK_DEFAULT_MS};

fn read(text: &str) -> Result<Refresh, String> {
    let document = serde_json::from_str(text).expect("JSON");
    Refresh::from_json(&document).map_err(|error| error.message)
}

#[test]
fn a_step_soaks_where_another_one_follows() {
    let soak = |more: &str| {
        let text = format!("{{\"image\": \"/gold/8\"{more}}}");
        read(&text).expect("it is right").asked.soak_ms
    };
    assert_eq!(soak(""), 0);
    assert_eq!(soak(", \"percent\": [100]"), 0);
    assert_eq!(soak(", \"percent\": [50]"), SOAK_DEFAULT_MS);
    assert_eq!(soak(", \"percent\": [10, 100]"), SOAK_DEFAULT_MS);
    assert_eq!(soak(", \"canary\": [\"desk-1\"]"), SOAK_DEFAULT_MS);
    assert_eq!(soak(", \"canary\": [\"desk-1\"], \"soak\": \"3s\""), 3_000);
    assert_eq!(soak(", \"soak\": \"3s\""), 3_000);
}

#[test]
fn what_is_wrong_with_an_order_is_told_with_its_key() {
    let cases = [
        (
            "{}",
            "image: is missing; write {\"image\": \"/mnt/nfs/gold/office-8.img\"}",
        ),
        (
            "{\"image\": \"gold/8\"}",
            "image: \"gold/8\" is no full path; write the path of an image file or a block \
             device, from the root",
        ),
        ("{\"image\": 8}", "image: is 8; write the path of an image"),
        (
            "{\"image\": \"/g\", \"percent\": [50, 10]}",
            "percent: is [50,10]; write a list of numbers that grow, as in [10, 50, 100]",
        ),
        (
            "{\"image\": \"/g\", \"percent\": [0]}",
            "percent: is [0]; write a list of numbers that grow, as in [10, 50, 100]",
        ),
        (
            "{\"image\": \"/g\", \"canary\": \"desk-1\"}",
            "canary: is \"desk-1\"; write a list of members",
        ),
        (
            "{\"image\": \"/g\", \"health\": \"check\"}",
            "health: is \"check\"; write the full path of a program",
        ),
        (
            "{\"image\": \"/g\", \"max_failed\": -1}",
            "max_failed: is -1; write a number of members",
        ),
        (
            "{\"image\": \"/g\", \"prefetch\": \"some\"}",
            "prefetch: is \"some\"; write \"profile\", \"all\" or \"none\"",
        ),
        (
            "{\"image\": \"/g\", \"stage_only\": \"yes\"}",
            "stage_only: is \"yes\"; write true or false",
        ),
        (
            "{\"image\": \"/g\", \"colour\": 1}",
            "colour: unknown key; known here are image, canary, percent, soak, max_failed, \
             health, at_unix_ms, prefetch, stage_only and discard_changes",
        ),
    ];
    for (text, words) in cases {
        assert_eq!(read(text).expect_err(text), words);
    }
}
