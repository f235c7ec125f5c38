//! libFuzzer's way into `nbd_client::session`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::nbd_client::session(input);
});
