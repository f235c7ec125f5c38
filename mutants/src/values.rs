//! What a function could return instead, by its type.
//!
//! Owns the guess. Always true: a value is an expression that may or may not build; the compiler
//! is asked. Deliberately absent: types that are known by their bounds alone.

use syn::{GenericArgument, PathArguments, Type, TypePath};

/// Values of a type, as source.
pub fn of(kind: &Type) -> Vec<String> {
    match kind {
        Type::Path(path) => of_path(path),
        Type::Tuple(it) => {
            let mut tuples = vec![String::new()];
            for part in &it.elems {
                let parts = of(part);
                let with = |tuple: &String| {
                    let tuple = tuple.clone();
                    parts.iter().map(move |part| format!("{tuple}{part}, "))
                };
                tuples = tuples.iter().flat_map(with).collect();
            }
            tuples.iter().map(|it| format!("({it})")).collect()
        }
        Type::Reference(it) => match &*it.elem {
            Type::Slice(slice) => {
                let some = of(&slice.elem);
                let some = some.iter().map(|value| format!("std::vec![{value}]"));
                let leak = |value: String| format!("std::vec::Vec::leak({value})");
                let none = "std::vec::Vec::new()".to_owned();
                [none].into_iter().chain(some).map(leak).collect()
            }
            Type::Path(path) if path.path.is_ident("str") => {
                vec!["\"\"".to_owned(), "\"xyzzy\"".to_owned()]
            }
            kind => {
                let leak = |value| format!("std::boxed::Box::leak(std::boxed::Box::new({value}))");
                of(kind).into_iter().map(leak).collect()
            }
        },
        Type::Array(it) => {
            let length = &it.len;
            let length = quote::quote!(#length).to_string();
            let values = of(&it.elem);
            values
                .iter()
                .map(|it| format!("[{it}; {length}]"))
                .collect()
        }
        _ => Vec::new(),
    }
}

fn of_path(path: &TypePath) -> Vec<String> {
    let Some(last) = path.path.segments.last() else {
        return Vec::new();
    };
    let arguments = match &last.arguments {
        PathArguments::AngleBracketed(it) => {
            let kinds = it.args.iter().filter_map(|it| match it {
                GenericArgument::Type(kind) => Some(of(kind)),
                _ => None,
            });
            kinds.collect()
        }
        _ => Vec::new(),
    };
    let first = || arguments.first().cloned().unwrap_or_default();
    let all = |values: &[&str]| values.iter().map(|&it| it.to_owned()).collect();
    let around = |none: &str, before: &str, after: &str| {
        let some = first().into_iter();
        let some = some.map(|value| format!("{before}{value}{after}"));
        let none = (!none.is_empty()).then(|| none.to_owned());
        none.into_iter().chain(some).collect()
    };
    match last.ident.to_string().as_str() {
        "bool" => all(&["true", "false"]),
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => all(&["0", "1"]),
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => all(&["0", "1", "-1"]),
        "f32" | "f64" => all(&["0.0", "1.0", "-1.0"]),
        "String" => all(&["std::string::String::new()", "\"xyzzy\".into()"]),
        "Option" => around("None", "Some(", ")"),
        "Result" => around("", "Ok(", ")"),
        "Vec" => around("std::vec![]", "std::vec![", "]"),
        "Box" => around("", "std::boxed::Box::new(", ")"),
        _ => all(&["Default::default()"]),
    }
}
