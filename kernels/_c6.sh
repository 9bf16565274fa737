export IOSIM_CACHE=/tmp/kc PYTHONUNBUFFERED=1
( timeout 60 python3 -m iosim.kernelbuild.microbench --out $OUT/micro.json ) 2>&1 | tail -5; python3 -c "
import json,os; d=json.load(open(os.environ['OUT']+'/micro.json')); c=d.pop('l2_curves'); print(d); [print(k,[(a>>20,round(b/1e9)) for a,b in v]) for k,v in c.items()]"
( time timeout 60 python3 -m pytest tests/kernels -q -p no:cacheprovider ) 2>&1 | tail -8
for t in memcheck racecheck; do for k in flash naive minimal; do q=; [ $k = flash ] && q='--quick --groups lengths shapes decode orders backward'; [ $k != flash ] && q='--groups others'; ( PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 100 compute-sanitizer --tool $t --kernel-name kns=$k python3 kernels/bench.py check $q ) 2>&1 | grep -a "instantiations\|SUMMARY\|WRONG\|Error" | sed "s/^/$t $k: /" | tee -a $OUT/sanitizer.log; done; done
( PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 60 compute-sanitizer --tool synccheck --kernel-name kns=flash python3 kernels/bench.py check --quick --groups lengths decode orders backward ) 2>&1 | grep -a "instantiations\|SUMMARY" | tee -a $OUT/sanitizer.log
