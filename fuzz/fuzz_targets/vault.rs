//! libFuzzer's way into `vault::vault`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::vault::vault(input);
});
