# Makes our comments Doxygen's: a comment above a declaration or after a member describes it, and the first paragraph of
# a header is the file's. An indented line is code; elsewhere <, & and # are nothing but themselves.
1s#^// #/// \\file\n/// #
# A forward declaration's remark says where it is defined.
s#^((class|struct) [A-Za-z_]+;) +//.*#\1#
/^#include/s# +//.*##
/^ *\/\/ ? ?[^ ]/s#[<&]|\#[a-z]#\\&#g
s#^( *)//   +(.*)#\1///     \2#
s#^( *)//( |$)#\1///\2#
/[;,{}] +\/\/ /{
h
s#.*[;,{}] +// ##
s#[<&]|\#[a-z]#\\&#g
x
s#([;,{}]) +// .*#\1 ///< #
G
s#\n##
}
