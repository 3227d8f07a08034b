// The generated sources only name the namespace of this package, which Debian does not have.
namespace JsonSubTypes
{
}
