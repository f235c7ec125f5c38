//! libFuzzer's way into `qcow2::backing`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::qcow2::backing(input);
});
