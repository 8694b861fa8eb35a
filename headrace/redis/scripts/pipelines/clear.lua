-- Delete the records and results of a pipeline's stage jobs. KEYS: none.
-- ARGV: 1 id of the pipeline's job, 2 its token, then ids of the stage jobs. Returns 1, or 0 if the lease is lost.
local token, state = unpack(read(ARGV[1], 't', 's'))
if token ~= ARGV[2] or state ~= 'r' then return 0 end
for i = 3, #ARGV do call('UNLINK', keys.job .. ARGV[i], keys.meta .. ARGV[i]) end
return 1
