//! It is alone in its process, because it changes the environment, which libfabric reads from any
//! thread.

use libfabric_sys::{Library, LoadError};

#[test]
fn invalid_library_variable_is_an_error() {
    std::env::set_var("WEFT_LIBFABRIC", "/nonexistent/libfabric.so.1");
    let error = Library::load().expect_err("there is no such file");
    assert!(matches!(&error, LoadError::VariableNotLoadable { .. }), "{error:?}");
    let start = "WEFT_LIBFABRIC names /nonexistent/libfabric.so.1, which cannot be loaded: ";
    assert!(error.to_string().starts_with(start), "{error}");
}
