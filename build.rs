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
        "version",
        "status",
        "log",
        "topology",
        "endpoint",
        "op",
        "peer",
        "memory",
        "device",
        "completion",
        "counter",
        "transfer",
        "list",
        "prepared",
        "fence",
        "grant",
        "message",
        "atomic",
        "info",
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
            text.push_str(&with_initializers(&on_one_line(&without_safety(&generate(&source)))));
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
            line_length: 90,
            tab_width: 4,
            usize_is_size_t: true,
            ..Default::default()
        };
        config.function.must_use = Some("WEFT_MUST_USE".into());
        config.function.prefix = Some("WEFT_API".into());
        // What functions of later sections name.
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

    /// A comment of one line needs no three.
    fn on_one_line(text: &str) -> String {
        let lines: Vec<&str> = text.lines().collect();
        let mut out = String::new();
        let mut i = 0;
        while i < lines.len() {
            let one = i + 2 < lines.len() && lines[i].trim() == "/**" && lines[i + 2].trim() == "*/";
            if one {
                let indent = &lines[i][..lines[i].len() - 3];
                out.push_str(&format!("{indent}/** {} */\n", lines[i + 1].trim().trim_start_matches("* ")));
                i += 3;
            } else {
                out.push_str(lines[i]);
                out.push('\n');
                i += 1;
            }
        }
        out
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
                    let rest = fields[1..].join(", ");
                    out.push_str(&format!(
                        "\n#define {}_INIT {{sizeof({name}), {rest}}}\n",
                        name.to_uppercase()
                    ));
                }
                parts.insert(name, format!("{{{}}}", fields.join(", ")));
                fields.clear();
            }
        }
        out
    }
}
