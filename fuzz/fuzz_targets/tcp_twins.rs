#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weft::fuzzing::tcp_twins(data));
