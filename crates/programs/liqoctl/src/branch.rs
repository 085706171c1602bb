//! Trees of text on the terminal.

/// A line and the lines below it.
pub struct Branch {
    pub text: String,
    pub children: Vec<Branch>,
}

impl Branch {
    pub fn leaf(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            children: Vec::new(),
        }
    }

    /// Adds the line and the lines below it; `indent` is what the lines below it begin with.
    pub fn draw(&self, indent: &str, out: &mut String) {
        out.push_str(&self.text);
        out.push('\n');
        for (index, child) in self.children.iter().enumerate() {
            let last = index + 1 == self.children.len();
            out.push_str(indent);
            out.push_str(if last { "└─ " } else { "├─ " });
            child.draw(
                &format!("{indent}{}", if last { "   " } else { "│  " }),
                out,
            );
        }
    }

    /// Adds the line with this indent, and the lines below it two columns further right.
    pub fn draw_list(&self, indent: &str, out: &mut String) {
        out.push_str(indent);
        out.push_str(&self.text);
        out.push('\n');
        for child in &self.children {
            child.draw_list(&format!("{indent}  "), out);
        }
    }
}
