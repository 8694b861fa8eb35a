-- Remove what is left of the jobs of a pipeline's stages, where the pipeline's job is still the caller's. KEYS: none.
-- ARGV: 1 id, 2 token, then ids of the stages' jobs. Returns 1, or 0 where the job is another's or has ended.
local token, state = unpack(read(ARGV[1], 't', 's'))
if token ~= ARGV[2] or state ~= 'r' then return 0 end
for i = 3, #ARGV do redis.call('UNLINK', JOB .. ARGV[i], META .. ARGV[i]) end
return 1
