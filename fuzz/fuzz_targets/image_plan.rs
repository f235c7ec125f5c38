//! libFuzzer's way into `qcow2::plans`; what it does is said there.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    tenuto_fuzz::qcow2::plans(input);
});
