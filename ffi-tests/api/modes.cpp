// Two parts of one program, of which the first that is linked was compiled without exceptions: the other throws as ever.
#include "weft.hpp"

void without_exceptions(weft_status status);

#if !defined(__cpp_exceptions)

void without_exceptions(weft_status status)
{
    weft::check(status);
}

#else

int main()
{
    without_exceptions(WEFT_OK);
    try {
        weft::check(WEFT_ERR_INVALID);
    } catch (const weft::error &e) {
        return e.status() == WEFT_ERR_INVALID ? 0 : 1;
    }
    return 1;
}

#endif
