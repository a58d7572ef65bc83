//! What happens at each call, a file a family. The table names the functions here.
