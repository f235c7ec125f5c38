//! libFuzzer's way into `rings::block_request`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::rings::block_request(input);
});
