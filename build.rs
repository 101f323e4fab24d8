//! Sets the shared library's soname, and makes `include/weft.h` when asked to.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweft.so.0");
    // Worker threads and at-fork handlers may run code of the library after a dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    #[cfg(feature = "header")]
    header::write();
}

/// One cbindgen run for each file of `src/capi`, so that the header reads in
/// the order of its sections: cbindgen alone puts all types before all
/// functions.
#[cfg(feature = "header")]
mod header {
    use std::{collections::HashMap, env, fs, path::Path};

    const SECTIONS: [&str; 19] = [
        "status",
        "endpoint",
        "op",
        "peer",
        "memory",
        "completion",
        "transfer",
        "message",
        "fence",
        "grant",
        "list",
        "prepared",
        "counter",
        "atomic",
        "device",
        "info",
        "topology",
        "log",
        "version",
    ];

    pub fn write() {
        let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
        let part = |name: &str| {
            let path = Path::new(&root).join("include").join(name);
            println!("cargo:rerun-if-changed={}", path.display());
            fs::read_to_string(path).expect("a part of the header")
        };
        let mut text = part("weft.h.top");
        for section in SECTIONS {
            let source = format!("{root}/src/capi/{section}.rs");
            println!("cargo:rerun-if-changed={source}");
            text.push_str(&title(&fs::read_to_string(&source).expect("a section's source")));
            if section == "version" {
                text.push_str(&version());
            }
            text.push_str(&without_stars(&with_initializers(&without_safety(&generate(&source)))));
        }
        text.push_str(&part("weft.h.bottom"));
        println!("cargo:rerun-if-env-changed=WEFT_HEADER_OUT");
        let out = env::var("WEFT_HEADER_OUT").unwrap_or_else(|_| format!("{root}/include/weft.h"));
        fs::write(out, text).expect("the header can be written");
    }

    fn generate(source: &str) -> String {
        let mut config = cbindgen::Config {
            language: cbindgen::Language::C,
            no_includes: true,
            documentation_style: cbindgen::DocumentationStyle::Doxy,
            line_length: 79,
            tab_width: 4,
            usize_is_size_t: true,
            ..Default::default()
        };
        config.function.must_use = Some("WEFT_MUST_USE".into());
        config.function.prefix = Some("WEFT_API".into());
        // Declarations that later sections use.
        let shared = ["weft_op", "weft_op_options", "weft_queue", "weft_watch", "weft_counter"];
        config.export.include = shared.map(String::from).into();
        let mut bytes = Vec::new();
        cbindgen::Builder::new()
            .with_config(config)
            .with_src(source)
            .generate()
            .expect("cbindgen reads src/capi")
            .write(&mut bytes);
        String::from_utf8(bytes)
            .expect("cbindgen writes UTF-8")
            .replace("struct weft_", "weft_")
            .replace("typedef weft_", "typedef struct weft_")
    }

    /// The first line of a section's module comment, as its title.
    fn title(source: &str) -> String {
        let first = source.lines().next().unwrap_or("").trim_start_matches("//!").trim();
        format!("\n/* ---- {} ---- */\n\n", first.trim_end_matches('.'))
    }

    /// The version that Cargo.toml names.
    fn version() -> String {
        let part = |name: &str| env::var(format!("CARGO_PKG_VERSION_{name}")).expect("cargo sets it");
        let define = |name: &str| format!("#define WEFT_VERSION_{name} {}\n\n", part(name));
        let parts = ["MAJOR", "MINOR", "PATCH"].map(define).concat();
        format!("/** Version of this header: major, minor, patch. */\n{parts}")
    }

    /// Rust's "# Safety" paragraphs are for callers in Rust.
    fn without_safety(text: &str) -> String {
        let mut kept: Vec<&str> = Vec::new();
        let mut skipping = false;
        for line in text.lines() {
            if line.trim() == "* # Safety" {
                skipping = true;
                if kept.last().is_some_and(|l| l.trim() == "*") {
                    kept.pop();
                }
            }
            if line.trim() == "*/" {
                skipping = false;
            }
            if !skipping {
                kept.push(line);
            }
        }
        kept.join("\n") + "\n"
    }

    /// Comments without a column of stars: the text begins and ends beside the marks.
    fn without_stars(text: &str) -> String {
        let mut out = String::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(indent) = line.strip_suffix("/**").filter(|before| before.trim().is_empty()) else {
                out.push_str(line);
                out.push('\n');
                continue;
            };
            let mut comment = format!("{indent}/**");
            for (at, line) in lines.by_ref().take_while(|line| line.trim() != "*/").enumerate() {
                let text = line.trim_start().trim_start_matches('*');
                if at > 0 {
                    comment.push('\n');
                    if !text.is_empty() {
                        comment.push_str(indent);
                        comment.push_str("   ");
                    }
                }
                comment.push_str(text);
            }
            let last = comment.len() - comment.rfind('\n').map_or(0, |at| at + 1);
            out.push_str(&comment);
            out.push_str(if last + 3 > 80 { "\n" } else { " " });
            out.push_str(if last + 3 > 80 { indent } else { "" });
            out.push_str("*/\n");
        }
        out
    }

    /// No line is longer than 80 columns.
    fn initializer(name: &str, rest: &[String]) -> String {
        let mut text = format!("\n#define {}_INIT {{sizeof({name})", name.to_uppercase());
        for field in rest {
            text.push(',');
            let line = text.len() - text.rfind('\n').map_or(0, |at| at + 1);
            text.push_str(if line + field.len() > 75 { " \\\n     " } else { "" });
            text.push_str(field);
        }
        text + "}\n"
    }

    /// After each struct that starts with its size, the macro that sets it. It
    /// names every field: an incomplete initializer is a warning in C and C++.
    fn with_initializers(text: &str) -> String {
        let mut out = String::new();
        let mut fields: Vec<String> = Vec::new();
        let mut sized = false;
        let mut parts: HashMap<&str, String> = HashMap::new();
        for line in text.lines() {
            out.push_str(line);
            out.push('\n');
            let code = line.trim();
            if line.starts_with("    ") && code.ends_with(';') && !code.starts_with('*') {
                let part =
                    code.split(' ').next().and_then(|kind| parts.get(kind)).filter(|_| !code.contains('*'));
                let plain = if code.ends_with("];") { "{0}" } else { "0" };
                fields.push(part.map_or(plain, String::as_str).to_owned());
                if fields.len() == 1 {
                    sized = code == "uint32_t size;";
                }
            }
            if let Some(name) = line.strip_prefix("} ").and_then(|l| l.strip_suffix(';')) {
                if sized && !fields.is_empty() {
                    out.push_str(&initializer(name, &fields[1..]));
                }
                parts.insert(name, format!("{{{}}}", fields.join(",")));
                fields.clear();
            }
        }
        out
    }
}
