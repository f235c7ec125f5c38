//! libFuzzer's way into `text::uri`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::text::uri(input);
});
