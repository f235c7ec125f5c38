//! libFuzzer's way into `format::footer`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::format::footer(input);
});
