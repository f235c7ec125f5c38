//! The places of a source file that can be changed, and the changes.
//!
//! Owns what is found in a syntax tree: bodies of functions that return something else, operators,
//! negations, arms and their guards. Always true: a range is one of bytes of the file's text, and
//! two ranges are apart or one holds the other. Deliberately absent: tests, constant functions and
//! other constants (nothing can be switched there), and what stands in the arguments of macros.

use crate::values;
use proc_macro2::Span;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Block, Expr, ReturnType, Signature, UnOp};

/// One place, and everything that can be done to it.
#[derive(Debug)]
pub struct Place {
    pub range: Range<usize>,
    pub kind: Kind,
    pub changes: Vec<Change>,
    /// The function, with its type.
    pub function: String,
    pub line: usize,
}

#[derive(Debug)]
pub enum Kind {
    /// An insertion at the begin of a body; a change is what is returned instead.
    Body,
    /// A change is another operator.
    Binary {
        left: Range<usize>,
        operator: String,
        right: Range<usize>,
    },
    /// Its one change leaves it out.
    Unary {
        operator: String,
        operand: Range<usize>,
    },
    /// An insertion behind a pattern without a guard; the change leaves the arm out.
    Arm,
    /// A guard: always, never, and, where there is a third change, without its arm.
    Guard,
}

#[derive(Debug)]
pub struct Change {
    pub code: String,
    pub about: String,
}

/// All places of a file.
pub fn of(text: &str) -> syn::Result<Vec<Place>> {
    let file = syn::parse_file(text)?;
    let mut finder = Finder {
        owner: Vec::new(),
        functions: Vec::new(),
        found: Vec::new(),
    };
    finder.visit_file(&file);
    Ok(finder.found)
}

struct Finder {
    /// Types whose `impl` we are in.
    owner: Vec<String>,
    functions: Vec<String>,
    found: Vec<Place>,
}

impl Finder {
    fn add(&mut self, range: Range<usize>, line: usize, kind: Kind, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let names = self.owner.last().into_iter().chain(self.functions.last());
        let names: Vec<&str> = names.map(String::as_str).collect();
        self.found.push(Place {
            range,
            kind,
            changes,
            function: names.join("::"),
            line,
        });
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        if is_test(attributes) || signature.constness.is_some() {
            return;
        }
        self.functions.push(signature.ident.to_string());
        let start = block.brace_token.span.open().byte_range().end;
        let instead = match &signature.output {
            ReturnType::Default => vec!["()".to_owned()],
            ReturnType::Type(_, kind) => values::of(kind),
        };
        let change = |value: String| Change {
            code: format!("return {value};"),
            about: format!("returns {value}"),
        };
        let changes = instead.into_iter().map(change).collect();
        if !block.stmts.is_empty() {
            self.add(start..start, line(block.span()), Kind::Body, changes);
        }
        visit::visit_block(self, block);
        self.functions.pop();
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of_trait = item.trait_.as_ref().map(|(_, path, _)| last_of(path));
        if is_test(&item.attrs) || of_trait.as_deref() == Some("Debug") {
            return;
        }
        let kind = match &*item.self_ty {
            syn::Type::Path(path) => last_of(&path.path),
            other => quote::quote!(#other).to_string(),
        };
        self.owner.push(kind);
        visit::visit_item_impl(self, item);
        self.owner.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.attrs, &item.sig, block);
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}

    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}

    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}

    fn visit_type(&mut self, _: &'ast syn::Type) {}

    fn visit_pat(&mut self, _: &'ast syn::Pat) {}

    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}

    fn visit_expr_repeat(&mut self, item: &'ast syn::ExprRepeat) {
        self.visit_expr(&item.expr);
    }

    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_expr_binary(&mut self, item: &'ast syn::ExprBinary) {
        let operator = item.op;
        let changes = operators(&operator).iter().map(|other| Change {
            code: (*other).to_owned(),
            about: format!("`{}` as `{other}`", text_of(&operator)),
        });
        let kind = Kind::Binary {
            left: bytes(item.left.span()),
            operator: text_of(&operator),
            right: bytes(item.right.span()),
        };
        if !has_let(&item.left) && !has_let(&item.right) {
            let changes = changes.collect();
            self.add(bytes(item.span()), line(operator.span()), kind, changes);
        }
        visit::visit_expr_binary(self, item);
    }

    fn visit_expr_unary(&mut self, item: &'ast syn::ExprUnary) {
        let operator = match item.op {
            UnOp::Not(_) => "!",
            UnOp::Neg(_) => "-",
            _ => return visit::visit_expr_unary(self, item),
        };
        let kind = Kind::Unary {
            operator: operator.to_owned(),
            operand: bytes(item.expr.span()),
        };
        let change = Change {
            code: String::new(),
            about: format!("without its `{operator}`"),
        };
        self.add(bytes(item.span()), line(item.span()), kind, vec![change]);
        visit::visit_expr_unary(self, item);
    }

    fn visit_expr_match(&mut self, item: &'ast syn::ExprMatch) {
        let last = item.arms.last();
        let has_rest =
            last.is_some_and(|it| matches!(it.pat, syn::Pat::Wild(_)) && it.guard.is_none());
        let about = |about: &str| Change {
            code: String::new(),
            about: about.to_owned(),
        };
        let count = item.arms.len();
        for (index, arm) in item.arms.iter().enumerate() {
            let left_out = (has_rest && index + 1 < count).then(|| about("without this arm"));
            let at = line(arm.pat.span());
            if let Some((_, guard)) = &arm.guard {
                let changes = [about("guard always true"), about("guard always false")];
                let changes = changes.into_iter().chain(left_out).collect();
                if !has_let(guard) {
                    self.add(bytes(guard.span()), at, Kind::Guard, changes);
                }
            } else {
                let end = bytes(arm.pat.span()).end;
                self.add(end..end, at, Kind::Arm, left_out.into_iter().collect());
            }
        }
        visit::visit_expr_match(self, item);
    }
}

fn bytes(span: Span) -> Range<usize> {
    span.byte_range()
}

fn line(span: Span) -> usize {
    span.start().line
}

fn last_of(path: &syn::Path) -> String {
    path.segments
        .last()
        .map(|it| it.ident.to_string())
        .unwrap_or_default()
}

fn text_of(operator: &BinOp) -> String {
    quote::quote!(#operator).to_string()
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|it| {
        let text = quote::quote!(#it).to_string();
        text.contains("test") || text.contains("adversary")
    })
}

/// True where a pattern binds what stands behind it.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(it) => has_let(&it.left) || has_let(&it.right),
        _ => false,
    }
}

fn operators(operator: &BinOp) -> &'static [&'static str] {
    match operator {
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Lt(_) => &["==", ">", "<="],
        BinOp::Gt(_) => &["==", "<", ">="],
        BinOp::Le(_) => &[">", "<"],
        BinOp::Ge(_) => &["<", ">"],
        BinOp::Add(_) => &["-", "*"],
        BinOp::Sub(_) => &["+", "/"],
        BinOp::Mul(_) => &["+", "/"],
        BinOp::Div(_) => &["%", "*"],
        BinOp::Rem(_) => &["/", "+"],
        BinOp::BitAnd(_) => &["|", "^"],
        BinOp::BitOr(_) => &["&", "^"],
        BinOp::BitXor(_) => &["|", "&"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::AddAssign(_) => &["-=", "*="],
        BinOp::SubAssign(_) => &["+=", "/="],
        BinOp::MulAssign(_) => &["+=", "/="],
        BinOp::DivAssign(_) => &["%=", "*="],
        BinOp::RemAssign(_) => &["/=", "+="],
        BinOp::BitAndAssign(_) => &["|=", "^="],
        BinOp::BitOrAssign(_) => &["&=", "^="],
        BinOp::BitXorAssign(_) => &["|=", "&="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        _ => &[],
    }
}
